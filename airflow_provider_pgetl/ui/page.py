"""The replication page: an overview of the pipelines; for each its history, tables and slots; for each table its past.

Airflow does not authenticate requests on behalf of a plugin, so each route asks it to do so, before anything is looked
up: a user who may not see plugins is refused, and a pipeline is shown only to users who may read its DAG (`found`).
Users who may edit the DAG are offered `actions`, each on a page of its own that says what it does and costs.

The page contains no scripts, and reloads itself. What it shows is in its address, so a view can be sent to others. It
is light or dark as the browser is. Programs ask the `api`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from urllib.parse import quote, urlencode

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import Depends, FastAPI, HTTPException, Request, status
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from airflow_provider_pgetl.engine.model.phases import phase_name
from airflow_provider_pgetl.engine.model.quantities import format_duration, format_size
from airflow_provider_pgetl.engine.model.results import RESOLUTIONS
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.monitoring.surveys import SurveyedTable, TableHistory
from airflow_provider_pgetl.naming import MOUNT, anchor
from airflow_provider_pgetl.ui import actions, api
from airflow_provider_pgetl.ui.actions import Action, EditableDags
from airflow_provider_pgetl.ui.declared import KnownPipeline
from airflow_provider_pgetl.ui.found import (
    SPANS,
    DeclaredIds,
    Found,
    Orphan,
    ReadablePipelines,
    View,
    find,
    history_of,
    look_at,
    meant_by,
    orphans_of,
    table_of,
    what_to_do,
    with_slots,
)
from airflow_provider_pgetl.wording import in_airflow

# -- The rendered pages. Pure, but for the templates, which are read from this folder. ---------------------------------

_SPAN_WORDS = {"hour": "last hour", "day": "last day", "weeks": "last two weeks"}


def overview_page(found: Sequence[Found], airflow: str, orphans: Sequence[Orphan] = ()) -> str:
    return _template("overview.html").render(found=found, airflow=airflow, orphans=orphans)


def pipeline_page(
    found: Sequence[Found], airflow: str, view: View, editable: frozenset[str] = frozenset(), done: str = ""
) -> str:
    """Renders a pipeline; more than one only where several DAGs use the same id. `done`: what the user has just
    done."""
    given = {"found": found, "airflow": airflow, "view": view, "spans": _SPAN_WORDS.items(), "done": done}
    offered = {one.dag_id: actions.offered(one, editable) for one in found}
    return _template("pipeline.html").render(**given, offered=offered)


def table_page(
    found: Found,
    table: SurveyedTable,
    history: TableHistory,
    airflow: str,
    tasks: str = "",
    editable: frozenset[str] = frozenset(),
) -> str:
    """Renders one table. `tasks`: the path of its tasks in Airflow, if it has a group of its own."""
    longest = max((entry.lasted for entry in history.phases), default=0.0)
    given = {"pipeline": found, "table": table, "history": history, "airflow": airflow, "tasks": tasks}
    action = Action.COPY_AGAIN if found.dag_id in editable else None
    return _template("table.html").render(**given, longest=longest, action=action)


def action_page(found: Found, action: Action, table: TableName | None) -> str:
    """Renders what an action does and costs, with the button that does it."""
    given = {"pipeline": found, "action": action, "table": table}
    return _template("action.html").render(**given, consequences=actions.consequences(action, found, table))


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


def _verified_words(surveyed: SurveyedTable, now: float) -> str:
    """Returns the result of the last verification, and how old it is."""
    found = surveyed.verified
    if found is None:
        return "never"
    age = "" if found.at is None else f", {format_duration(max(now - found.at, 0.0))} ago"
    return f"{found.verdict}{age}"


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("airflow_provider_pgetl", "ui"), autoescape=True, undefined=StrictUndefined
    )
    environment.filters |= {
        "duration": format_duration,
        "size": format_size,
        "phase_name": phase_name,
        "anchor": anchor,
        "moment": _moment,
    }
    environment.filters |= {"in_airflow": in_airflow, "what_to_do": what_to_do, "verified_words": _verified_words}
    return environment.get_template(name)


# -- The routes. -------------------------------------------------------------------------------------------------------

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "; ".join(
        ("default-src 'none'", "style-src 'unsafe-inline'", "form-action 'self'", "frame-ancestors 'self'")
    ),
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}

app = FastAPI(
    title="pgetl",
    openapi_url=None,
    dependencies=[Depends(requires_access_view(AccessView.PLUGINS))],
    default_response_class=HTMLResponse,
)
app.include_router(api.router)


@app.get("/")
def overview(request: Request, known: ReadablePipelines, declared: DeclaredIds, editable: EditableDags) -> HTMLResponse:
    """Shows every pipeline, with how many of its tables are in each phase."""
    found = look_at(known)
    orphans = orphans_of(found, declared, editable)
    return HTMLResponse(overview_page(found, _airflow(request), orphans), headers=_HEADERS)


@app.get("/pipelines/{pipeline}")
def tables(
    pipeline: str,
    request: Request,
    known: ReadablePipelines,
    editable: EditableDags,
    span: str = "hour",
    phase: str = "",
    search: str = "",
    done: str = "",
) -> HTMLResponse:
    """Shows the history of one pipeline, its tables, and its replication slots."""
    meant = meant_by(known, pipeline)
    chosen = View(span if span in SPANS else "hour", phase, search)
    looked = zip(look_at(meant, SPANS[chosen.span]), meant, strict=True)
    found = [with_slots(each, one, one.dag_id in editable) for each, one in looked]
    said = _DONE.get(done, "")
    return HTMLResponse(pipeline_page(found, _airflow(request), chosen, editable, said), headers=_HEADERS)


@app.get("/pipelines/{pipeline}/table")
def table(
    pipeline: str, schema: str, name: str, request: Request, known: ReadablePipelines, editable: EditableDags
) -> HTMLResponse:
    """Shows one table: the phases that it went through, its rows, and the versions of its schema."""
    one, found, shown = table_of(known, pipeline, TableName(schema, name))
    history, tasks = history_of(one, shown.table), _path_of(one, shown.table)
    return HTMLResponse(table_page(found, shown, history, _airflow(request), tasks, editable), headers=_HEADERS)


_DONE = {
    "pause": "The pipeline is paused. Its stream ends within seconds.",
    "resume": "The pipeline is resumed.",
    "copy_again": "The table is in Init: a run copies it again.",
}


@app.get("/pipelines/{pipeline}/actions/{action}")
def before(
    pipeline: str,
    action: Action,
    known: ReadablePipelines,
    editable: EditableDags,
    dag_id: str | None = None,
    schema: str | None = None,
    name: str | None = None,
) -> HTMLResponse:
    """Shows what an action does and costs."""
    one = actions.expect_editable(meant_by(known, pipeline), editable, dag_id)
    found = with_slots(find(one, RESOLUTIONS[0]), one, others=False)
    return HTMLResponse(action_page(found, action, _table_of(action, schema, name)), headers=_HEADERS)


@app.post("/pipelines/{pipeline}/actions/{action}", dependencies=[Depends(actions.expect_same_site)])
def act(
    pipeline: str,
    action: Action,
    request: Request,
    known: ReadablePipelines,
    editable: EditableDags,
    user: GetUserDep,
    dag_id: str | None = None,
    schema: str | None = None,
    name: str | None = None,
) -> RedirectResponse:
    """Does it, and shows the pipeline."""
    one = actions.expect_editable(meant_by(known, pipeline), editable, dag_id)
    actions.carry_out(action, one, _table_of(action, schema, name), user)
    there = f"{request.scope.get('root_path', '')}/pipelines/{quote(pipeline, safe='')}?{urlencode({'done': action})}"
    return RedirectResponse(there, status.HTTP_303_SEE_OTHER, headers=_HEADERS)


def _table_of(action: Action, schema: str | None, name: str | None) -> TableName | None:
    if not action.is_of_table:
        return None
    if schema is None or name is None:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, "Name the table.")
    return TableName(schema, name)


def _path_of(known: KnownPipeline, table: TableName) -> str:
    """Returns the path of the table's tasks in Airflow; empty where they are in no group of their own."""
    group = known.group_of(table)
    return "" if group is None else f"/dags/{quote(known.dag_id, safe='')}/tasks/group/{quote(group, safe='')}"


def _airflow(request: Request) -> str:
    """Returns the path below which this Airflow is served."""
    return str(request.scope.get("root_path", "")).removesuffix(MOUNT)
