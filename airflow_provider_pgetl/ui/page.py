"""The replication page: an overview of the pipelines, and for each the state of its tables.

Everything is read on request: from the pipelines' own state databases, and slots from their sources, by the connections
that their DAGs name; nothing is changed or stored. Airflow does not authenticate requests on behalf of a plugin, so
each route asks it to do so, before anything is looked up: a user who may not see plugins is refused, and a pipeline is
shown only to users who may read its DAG. Slots that may be left over are named only to users who may edit that DAG:
they do not belong to the pipeline, and their names are those of others.

The page contains no scripts, as it is reloaded every few seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.models.asset import AssetModel, TaskInletAssetReference
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.renderedtifields import RenderedTaskInstanceFields
from airflow.models.serialized_dag import SerializedDagModel
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, HTTPException, Request, status
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from sqlalchemy import select

from airflow_provider_pgetl.assets import SOURCE_SCHEME
from airflow_provider_pgetl.connections import SOURCE, STATE, stored_value
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import Errored, Ready, phase_name
from airflow_provider_pgetl.engine.model.quantities import format_duration, format_size
from airflow_provider_pgetl.engine.monitoring.snapshots import PipelineSurvey, SaidLag, SurveyedTable, survey
from airflow_provider_pgetl.engine.monitoring.sources import SlotSurvey, survey_slots
from airflow_provider_pgetl.errored_tables import errored_table
from airflow_provider_pgetl.naming import MOUNT, anchor
from airflow_provider_pgetl.running_airflow import team_of
from airflow_provider_pgetl.wording import in_airflow

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


# -- The rendered pages. Pure, but for the templates, which are read from this folder. ---------------------------------

_STALE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Found:
    """A pipeline of a DAG. Without a survey it has not run yet, or `trouble` says why there is none. `slots` are those
    at its source; None where `slots_trouble` says why they are not known."""

    id: str
    dag_id: str
    survey: PipelineSurvey | None = None
    trouble: str | None = None
    slots: SlotSurvey | None = None
    slots_trouble: str | None = None

    @property
    def state(self) -> str:
        if self.trouble is not None:
            return "unknown"
        if self.survey is None:
            return "has not run yet"
        if self.survey.paused:
            return "paused"
        return "streaming" if self.survey.streamed else "not streaming"

    @property
    def phases(self) -> str:
        """How many tables are in which phase, the most frequent first."""
        found = Counter(phase_name(each.state.phase) for each in self.tables)
        return ", ".join(f"{count} {name}" for name, count in found.most_common())

    @property
    def errored(self) -> int:
        return sum(isinstance(each.state.phase, Errored) for each in self.tables)

    @property
    def tables(self) -> tuple[SurveyedTable, ...]:
        return () if self.survey is None else self.survey.tables

    @property
    def lag(self) -> str:
        return "" if self.survey is None else lag_text(self.survey.lag)

    def lag_of(self, table: SurveyedTable) -> str:
        """Returns the lag of the apply stream, which applies to the tables that are Ready. Of other tables only the
        phase shows how far they are."""
        return self.lag if isinstance(table.state.phase, Ready) else ""


def lag_text(lag: SaidLag | None) -> str:
    if lag is None:
        return ""
    said = f"{format_size(lag.bytes)}, {format_duration(lag.seconds)}"
    return said if lag.age < _STALE_SECONDS else f"{said} ({format_duration(lag.age)} ago)"


def overview_page(found: Sequence[Found], airflow: str) -> str:
    return _template("overview.html").render(found=found, airflow=airflow)


def pipeline_page(found: Sequence[Found], airflow: str) -> str:
    """Renders a pipeline; more than one only where several DAGs use the same id."""
    return _template("pipeline.html").render(found=found, airflow=airflow)


def _what_to_do(surveyed: SurveyedTable) -> str:
    """Returns the remedy of a table that is Errored."""
    errored = errored_table(surveyed.table, surveyed.state, 0.0)
    return "" if errored is None else errored.what_to_do


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
    }
    environment.filters |= {"in_airflow": in_airflow, "what_to_do": _what_to_do}
    return environment.get_template(name)


# -- The pipelines of this Airflow: those whose `apply` is in a DAG that is in use. ------------------------------------
#
# They are found by the source tables, which are inlets of `apply` and so in Airflow's database as assets; DAGs that
# have none are never read. This runs in the api-server only, where the database is accessible.

_APPLY = "ApplyOperator"
_READ_MOST = 1000


@dataclass(frozen=True, slots=True)
class KnownPipeline:
    """A pipeline that a DAG declares. The connections of its state and of its source are None where they are templates
    that no run has resolved yet. `team` is the DAG's."""

    id: str
    dag_id: str
    state_conn_id: str | None
    source_conn_id: str | None = None
    team: str | None = None


class _Apply(NamedTuple):
    """What is read of an `apply` task."""

    task_id: str
    pipeline_id: str
    connections: Any


_READ: dict[str, tuple[_Apply, ...]] = {}


def known_pipelines(session: Session, readable: Collection[str]) -> list[KnownPipeline]:
    """Returns the pipelines of the DAGs in `readable`, sorted."""
    dag_ids = [dag_id for dag_id in session.scalars(_DAGS) if dag_id in readable]
    found = SerializedDagModel.get_latest_serialized_dags(dag_ids=dag_ids, session=session) if dag_ids else ()
    pipelines = [known for each in found for known in _of_dag(session, each)]
    return sorted(pipelines, key=lambda known: (known.id, known.dag_id))


_DAGS = (
    select(TaskInletAssetReference.dag_id)
    .join(AssetModel, AssetModel.id == TaskInletAssetReference.asset_id)
    .join(DagModel, DagModel.dag_id == TaskInletAssetReference.dag_id)
    .where(AssetModel.uri.startswith(f"{SOURCE_SCHEME}://", autoescape=True), DagModel.is_stale.is_(False))
    .distinct()
)


def _of_dag(session: Session, serialized: SerializedDagModel) -> Iterator[KnownPipeline]:
    team = team_of(serialized.dag_id)
    for apply in _applies(serialized):
        state, source = _ids(apply.connections)
        if state is None or source is None:
            rendered = _ids(_rendered(session, serialized.dag_id, apply.task_id).get("connections"))
            state, source = state or rendered[0], source or rendered[1]
        yield KnownPipeline(apply.pipeline_id, serialized.dag_id, state, source, team)


def _applies(serialized: SerializedDagModel) -> tuple[_Apply, ...]:
    """Returns the `apply` tasks of a DAG. To deserialise a DAG of hundreds of tables takes half a second, so it is done
    once for each version of it."""
    found = _READ.get(serialized.dag_hash)
    if found is None:
        found = tuple(
            _Apply(task.task_id, str(getattr(task, "pipeline_id", "")), getattr(task, "connections", None))
            for task in serialized.dag.tasks
            if task.task_type == _APPLY
        )
        if len(_READ) >= _READ_MOST:
            _READ.clear()
        _READ[serialized.dag_hash] = found
    return found


def _ids(connections: Any) -> tuple[str | None, str | None]:
    """Returns the ids of the connections of state and source."""
    return _id(connections, "state"), _id(connections, "source")


def _id(connections: Any, name: str) -> str | None:
    conn_id = connections.get(name) if isinstance(connections, Mapping) else None
    return None if conn_id is None or "{{" in conn_id or "{%" in conn_id else str(conn_id)


def _rendered(session: Session, dag_id: str, task_id: str) -> Mapping[str, Any]:
    """Returns the template fields of the task as the latest run rendered them."""
    fields = RenderedTaskInstanceFields
    query = (
        select(fields.rendered_fields)
        .join(DagRun, (DagRun.dag_id == fields.dag_id) & (DagRun.run_id == fields.run_id))
        .where(fields.dag_id == dag_id, fields.task_id == task_id)
        .order_by(DagRun.run_after.desc())
        .limit(1)
    )
    return session.scalar(query) or {}


# -- The routes. -------------------------------------------------------------------------------------------------------

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
    """Returns the pipelines whose DAG the user may read."""
    readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    with create_session() as session:
        return known_pipelines(session, readable)


ReadablePipelines = Annotated[list[KnownPipeline], Depends(readable_pipelines)]


@app.get("/")
def overview(request: Request, known: ReadablePipelines) -> HTMLResponse:
    """Shows every pipeline, with how many of its tables are in each phase."""
    return HTMLResponse(overview_page(_look_at(known), _airflow(request)), headers=_HEADERS)


@app.get("/pipelines/{pipeline}")
def tables(pipeline: str, request: Request, known: ReadablePipelines, user: GetUserDep) -> HTMLResponse:
    """Shows every table of one pipeline, and its replication slots."""
    meant = [each for each in known if each.id == pipeline]
    if not meant:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "There is no such pipeline, or none that you may see.")
    editable = get_auth_manager().get_authorized_dag_ids(user=user, method="PUT")
    found = [_with_slots(each, one, one.dag_id in editable) for each, one in zip(_look_at(meant), meant, strict=True)]
    return HTMLResponse(pipeline_page(found, _airflow(request)), headers=_HEADERS)


def _airflow(request: Request) -> str:
    """Returns the path below which this Airflow is served."""
    return str(request.scope.get("root_path", "")).removesuffix(MOUNT)


def _look_at(known: Sequence[KnownPipeline]) -> list[Found]:
    """Reads several pipelines at once, so that a database that does not answer delays only its own."""
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
    """Adds the replication slots. The source is queried for the page of one pipeline only. `others`: whether slots that
    are not the pipeline's are shown as well."""
    if found.survey is None or known.source_conn_id is None:
        return found
    try:
        uri = stored_value(SOURCE, known.source_conn_id, known.team)
        slots = survey_slots(uri, known.id, found.survey.instances)
        return replace(found, slots=slots if others else replace(slots, left_over=()))
    except PgetlError as error:
        return replace(found, slots_trouble=str(error))
