"""The replication page: an overview of the pipelines, and for each the whereabouts of its tables.

Everything is read when it is asked for, from the pipelines' own state databases, and slots from their sources, by the
connections that their DAGs name; nothing is changed, and nothing kept. Airflow authenticates nobody on behalf of a
plugin, so each route asks it itself, before anything is looked up: whoever may not see plugins is refused, and a
pipeline is there only for those who may read its DAG. Slots that may be left over are named only to those who may edit
that DAG: they are not the pipeline's, and their names are those of others.

Written without scripts: a page that is looked at anew every few seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, HTTPException, Request, status
from fastapi.responses import HTMLResponse

from airflow_provider_pgetl.connections import SOURCE, STATE, stored_value
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.source.slot_survey import survey_slots
from airflow_provider_pgetl.engine.state.survey import survey
from airflow_provider_pgetl.ui.addresses import MOUNT
from airflow_provider_pgetl.ui.known import KnownPipeline, known_pipelines
from airflow_provider_pgetl.ui.rendering import Found, overview_page, pipeline_page

_AT_ONCE = 8
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}

app = FastAPI(
    title="pgetl",
    openapi_url=None,
    dependencies=[Depends(requires_access_view(AccessView.PLUGINS))],
    default_response_class=HTMLResponse,
)


def readable_pipelines(user: GetUserDep) -> list[KnownPipeline]:
    """Those whose DAG the user may read."""
    readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    with create_session() as session:
        return known_pipelines(session, readable)


ReadablePipelines = Annotated[list[KnownPipeline], Depends(readable_pipelines)]


@app.get("/")
def overview(request: Request, known: ReadablePipelines) -> HTMLResponse:
    """Every pipeline, and how many of its tables are where."""
    return HTMLResponse(overview_page(_look_at(known), _airflow(request)), headers=_HEADERS)


@app.get("/pipelines/{pipeline}")
def tables(pipeline: str, request: Request, known: ReadablePipelines, user: GetUserDep) -> HTMLResponse:
    """Every table of one pipeline, and its replication slots."""
    meant = [each for each in known if each.id == pipeline]
    if not meant:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "There is no such pipeline, or none that you may see.")
    editable = get_auth_manager().get_authorized_dag_ids(user=user, method="PUT")
    found = [_with_slots(each, one, one.dag_id in editable) for each, one in zip(_look_at(meant), meant, strict=True)]
    return HTMLResponse(pipeline_page(found, _airflow(request)), headers=_HEADERS)


def _airflow(request: Request) -> str:
    """The path below which this Airflow is."""
    return str(request.scope.get("root_path", "")).removesuffix(MOUNT)


def _look_at(known: Sequence[KnownPipeline]) -> list[Found]:
    """Several at once, so that one database that does not answer costs its own time only."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pgetl survey") as pool:
        return list(pool.map(_find, known))


def _find(known: KnownPipeline) -> Found:
    if known.state_conn_id is None:
        return Found(known.id, known.dag_id, trouble="The connection of its state is a template, and nothing ran yet.")
    try:
        return Found(known.id, known.dag_id, survey(stored_value(STATE, known.state_conn_id, known.team), known.id))
    except PgetlError as error:
        return Found(known.id, known.dag_id, trouble=str(error))


def _with_slots(found: Found, known: KnownPipeline, others: bool) -> Found:
    """The source is asked on the page of one pipeline alone. `others`: whether slots of others are shown as well."""
    if found.survey is None or known.source_conn_id is None:
        return found
    try:
        uri = stored_value(SOURCE, known.source_conn_id, known.team)
        slots = survey_slots(uri, known.id, found.survey.instances)
        return replace(found, slots=slots if others else replace(slots, left_over=()))
    except PgetlError as error:
        return replace(found, slots_trouble=str(error))
