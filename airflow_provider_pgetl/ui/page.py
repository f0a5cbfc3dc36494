"""The replication page: an overview of the pipelines; for each its history, tables and slots; for each table its past.

Everything is read on request: from the pipelines' own state databases, and slots from their sources, by the connections
that their DAGs name; nothing is changed or stored. Airflow does not authenticate requests on behalf of a plugin, so
each route asks it to do so, before anything is looked up: a user who may not see plugins is refused, and a pipeline is
shown only to users who may read its DAG. Slots that may be left over are named only to users who may edit that DAG:
they do not belong to the pipeline, and their names are those of others.

The page contains no scripts, and reloads itself. What it shows is in its address, so a view can be sent to others. It
is light or dark as the browser is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial
from typing import Annotated
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, HTTPException, Request, status
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from airflow_provider_pgetl.connections import SOURCE, STATE, stored_value
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import Errored, Ready, phase_name
from airflow_provider_pgetl.engine.model.quantities import format_duration, format_size
from airflow_provider_pgetl.engine.model.results import RESOLUTIONS, Resolution
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.monitoring.snapshots import SaidLag
from airflow_provider_pgetl.engine.monitoring.sources import SlotSurvey, survey_slots
from airflow_provider_pgetl.engine.monitoring.surveys import (
    PipelineSurvey,
    SurveyedTable,
    TableHistory,
    survey,
    survey_history,
)
from airflow_provider_pgetl.errored_tables import errored_table
from airflow_provider_pgetl.naming import MOUNT, anchor
from airflow_provider_pgetl.ui import charts
from airflow_provider_pgetl.ui.charts import Chart
from airflow_provider_pgetl.ui.declared import KnownPipeline, known_pipelines
from airflow_provider_pgetl.wording import in_airflow

# -- The rendered pages. Pure, but for the templates, which are read from this folder. ---------------------------------

_STALE_SECONDS = 60.0
_SPANS = {"hour": "last hour", "day": "last day", "weeks": "last two weeks"}
_RESOLUTIONS: dict[str, Resolution] = dict(zip(_SPANS, RESOLUTIONS, strict=True))
_URGENCY = ("not streaming", "unknown", "paused", "has not run yet", "streaming")


@dataclass(frozen=True, slots=True)
class View:
    """What of a pipeline is shown: its history over a `span`, and the tables in a `phase` whose names contain
    `search`."""

    span: str = "hour"
    phase: str = ""
    search: str = ""

    def shows(self, table: SurveyedTable) -> bool:
        in_phase = self.phase in ("", phase_name(table.state.phase))
        return in_phase and self.search.lower() in str(table.table).lower()


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
    def phases(self) -> list[tuple[str, int]]:
        """How many tables are in which phase, the most frequent first."""
        return Counter(str(phase_name(each.state.phase)) for each in self.tables).most_common()

    @property
    def count(self) -> int:
        return len(self.tables)

    @property
    def urgency(self) -> tuple[bool, int, str]:
        """By what the overview is sorted: pipelines with Errored tables first, then those that do not stream."""
        return not self.errored, _URGENCY.index(self.state), self.id

    @property
    def errored_tables(self) -> list[SurveyedTable]:
        return [each for each in self.tables if isinstance(each.state.phase, Errored)]

    @property
    def errored(self) -> int:
        return len(self.errored_tables)

    @property
    def tables(self) -> tuple[SurveyedTable, ...]:
        return () if self.survey is None else self.survey.tables

    def shown(self, view: View) -> list[SurveyedTable]:
        """Returns the tables of the view: Errored ones first, and those that are not Ready before the others."""
        chosen = [each for each in self.tables if view.shows(each)]
        return sorted(chosen, key=lambda each: (_place(each), each.table))

    @property
    def charts(self) -> list[Chart]:
        found = self.survey
        return [] if found is None else charts.charts(found.measured, found.resolution, found.now)

    @property
    def lag_chart(self) -> Chart | None:
        """The chart of the lag; None if none was measured."""
        found = self.survey
        if found is None or not found.measured:
            return None
        return charts.lag_chart(found.measured, found.resolution, found.now)

    @property
    def lag(self) -> str:
        return "" if self.survey is None else lag_text(self.survey.lag)

    @property
    def lag_seconds(self) -> str:
        return "" if self.survey is None or self.survey.lag is None else format_duration(self.survey.lag.seconds)

    @property
    def lag_bytes(self) -> str:
        return "" if self.survey is None or self.survey.lag is None else format_size(self.survey.lag.bytes)

    @property
    def lag_age(self) -> str:
        """How long ago the lag was reported, if that is long ago."""
        lag = None if self.survey is None else self.survey.lag
        return "" if lag is None or lag.age < _STALE_SECONDS else format_duration(lag.age)

    def lag_of(self, table: SurveyedTable) -> str:
        """Returns the lag of the apply stream, which applies to the tables that are Ready. Of other tables only the
        phase shows how far they are."""
        return self.lag if isinstance(table.state.phase, Ready) else ""


def _place(table: SurveyedTable) -> int:
    match table.state.phase:
        case Errored():
            return 0
        case Ready():
            return 2
        case _:
            return 1


def lag_text(lag: SaidLag | None) -> str:
    if lag is None:
        return ""
    said = f"{format_size(lag.bytes)}, {format_duration(lag.seconds)}"
    return said if lag.age < _STALE_SECONDS else f"{said} ({format_duration(lag.age)} ago)"


def overview_page(found: Sequence[Found], airflow: str) -> str:
    return _template("overview.html").render(found=found, airflow=airflow)


def pipeline_page(found: Sequence[Found], airflow: str, view: View) -> str:
    """Renders a pipeline; more than one only where several DAGs use the same id."""
    return _template("pipeline.html").render(found=found, airflow=airflow, view=view, spans=_SPANS.items())


def table_page(found: Found, table: SurveyedTable, history: TableHistory, airflow: str, tasks: str = "") -> str:
    """Renders one table. `tasks`: the path of its tasks in Airflow, if it has a group of its own."""
    longest = max((entry.lasted for entry in history.phases), default=0.0)
    given = {"pipeline": found, "table": table, "history": history, "airflow": airflow, "tasks": tasks}
    return _template("table.html").render(**given, longest=longest)


def _moment(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S}"


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
        "moment": _moment,
    }
    environment.filters |= {"in_airflow": in_airflow, "what_to_do": _what_to_do}
    return environment.get_template(name)


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
def tables(
    pipeline: str,
    request: Request,
    known: ReadablePipelines,
    user: GetUserDep,
    span: str = "hour",
    phase: str = "",
    search: str = "",
) -> HTMLResponse:
    """Shows the history of one pipeline, its tables, and its replication slots."""
    meant = _meant(known, pipeline)
    chosen = View(span if span in _SPANS else "hour", phase, search)
    editable = get_auth_manager().get_authorized_dag_ids(user=user, method="PUT")
    looked = zip(_look_at(meant, _RESOLUTIONS[chosen.span]), meant, strict=True)
    found = [_with_slots(each, one, one.dag_id in editable) for each, one in looked]
    return HTMLResponse(pipeline_page(found, _airflow(request), chosen), headers=_HEADERS)


@app.get("/pipelines/{pipeline}/table")
def table(pipeline: str, schema: str, name: str, request: Request, known: ReadablePipelines) -> HTMLResponse:
    """Shows one table: the phases that it went through, its rows, and the versions of its schema."""
    asked = TableName(schema, name)
    for one in _meant(known, pipeline):
        found = _find(one, RESOLUTIONS[0])
        if found.trouble is not None:
            raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, found.trouble)
        shown = next((each for each in found.tables if each.table == asked), None)
        if shown is not None and one.state_conn_id is not None:
            history = _history(one, stored_value(STATE, one.state_conn_id, one.team), asked)
            tasks = _path_of(one, asked)
            return HTMLResponse(table_page(found, shown, history, _airflow(request), tasks), headers=_HEADERS)
    raise HTTPException(status.HTTP_404_NOT_FOUND, "The pipeline has no such table.")


def _history(known: KnownPipeline, uri: str, table: TableName) -> TableHistory:
    try:
        return survey_history(uri, known.id, table)
    except PgetlError as error:
        raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, str(error)) from None


def _meant(known: Sequence[KnownPipeline], pipeline: str) -> list[KnownPipeline]:
    meant = [each for each in known if each.id == pipeline]
    if not meant:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "There is no such pipeline, or none that you may see.")
    return meant


def _path_of(known: KnownPipeline, table: TableName) -> str:
    """Returns the path of the table's tasks in Airflow; empty where they are in no group of their own."""
    group = known.group_of(table)
    return "" if group is None else f"/dags/{quote(known.dag_id, safe='')}/tasks/group/{quote(group, safe='')}"


def _airflow(request: Request) -> str:
    """Returns the path below which this Airflow is served."""
    return str(request.scope.get("root_path", "")).removesuffix(MOUNT)


def _look_at(known: Sequence[KnownPipeline], resolution: Resolution = RESOLUTIONS[0]) -> list[Found]:
    """Reads several pipelines at once, so that a database that does not answer delays only its own."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pgetl survey") as pool:
        return list(pool.map(partial(_find, resolution=resolution), known))


def _find(known: KnownPipeline, resolution: Resolution) -> Found:
    if known.state_conn_id is None:
        return Found(known.id, known.dag_id, trouble="The connection of its state is a template, and nothing ran yet.")
    try:
        uri = stored_value(STATE, known.state_conn_id, known.team)
        return Found(known.id, known.dag_id, survey(uri, known.id, resolution))
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
