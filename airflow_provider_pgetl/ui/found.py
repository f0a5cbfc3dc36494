"""What the page and its API show: the pipelines that a user may read, as they are found when they ask.

Everything is read on request: from the pipelines' own state databases, and slots from their sources, by the connections
that their DAGs name. Where a state cannot be read now, what was read last is shown, with its age; the process of the
api-server remembers it. A pipeline is found only for users who may read its DAG. Slots that may be left over, and
pipelines that no DAG declares any more, are found only for users who may edit the DAG beside them: their names are
those of others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.utils.session import create_session
from fastapi import Depends, HTTPException, status

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
from airflow_provider_pgetl.ui import charts
from airflow_provider_pgetl.ui.charts import Chart
from airflow_provider_pgetl.ui.declared import KnownPipeline, known_pipelines

SPANS: dict[str, Resolution] = dict(zip(("hour", "day", "weeks"), RESOLUTIONS, strict=True))
"""The lengths of history that can be shown."""
_STALE_SECONDS = 60.0
_AT_ONCE = 8
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
    """A pipeline of a DAG. Without a survey it has not run yet, or `trouble` says why there is none. A survey beside
    trouble was read `age` seconds ago. `slots` are those at its source; None where `slots_trouble` says why they are
    not known."""

    id: str
    dag_id: str
    survey: PipelineSurvey | None = None
    trouble: str | None = None
    slots: SlotSurvey | None = None
    slots_trouble: str | None = None
    age: float = 0.0

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

    def table(self, name: TableName) -> SurveyedTable | None:
        return next((each for each in self.tables if each.table == name), None)

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


def what_to_do(surveyed: SurveyedTable) -> str:
    """Returns the remedy of a table that is Errored; nothing for another."""
    errored = errored_table(surveyed.table, surveyed.state, 0.0)
    return "" if errored is None else errored.what_to_do


# -- Finding them. -----------------------------------------------------------------------------------------------------


def declared_ids() -> frozenset[str]:
    """Returns the ids of the pipelines of all DAGs."""
    with create_session() as session:
        return frozenset(known.id for known in known_pipelines(session, None))


DeclaredIds = Annotated[frozenset[str], Depends(declared_ids)]


def readable_pipelines(user: GetUserDep) -> list[KnownPipeline]:
    """Returns the pipelines whose DAG the user may read."""
    readable = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    with create_session() as session:
        return known_pipelines(session, readable)


ReadablePipelines = Annotated[list[KnownPipeline], Depends(readable_pipelines)]


def look_at(known: Sequence[KnownPipeline], resolution: Resolution = RESOLUTIONS[0]) -> list[Found]:
    """Reads several pipelines at once, so that a database that does not answer delays only its own."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="pgetl survey") as pool:
        return list(pool.map(partial(find, resolution=resolution), known))


def find(known: KnownPipeline, resolution: Resolution) -> Found:
    if known.state_conn_id is None:
        return Found(known.id, known.dag_id, trouble="The connection of its state is a template, and nothing ran yet.")
    last = (known.dag_id, known.id, resolution.seconds)
    try:
        read = survey(stored_value(STATE, known.state_conn_id, known.team), known.id, resolution)
    except PgetlError as error:
        at, read = _LAST.get(last, (time.monotonic(), None))
        return Found(known.id, known.dag_id, read, trouble=str(error), age=time.monotonic() - at)
    if read is not None:
        _remember(last, read)
    return Found(known.id, known.dag_id, read)


_LAST: dict[tuple[str, str, int], tuple[float, PipelineSurvey]] = {}
_REMEMBERED_MOST = 1000


def _remember(key: tuple[str, str, int], read: PipelineSurvey) -> None:
    if key not in _LAST and len(_LAST) >= _REMEMBERED_MOST:
        _LAST.clear()
    _LAST[key] = (time.monotonic(), read)


@dataclass(frozen=True, slots=True)
class Orphan:
    """A pipeline that no DAG declares, in the state database of one that `dag_id` does."""

    id: str
    dag_id: str


def orphans_of(found: Sequence[Found], declared: Collection[str], editable: Collection[str]) -> list[Orphan]:
    """Returns the pipelines in the state databases of those found that are not declared, for users who may edit one of
    the DAGs there."""
    orphans: dict[str, Orphan] = {}
    for one in found:
        if one.survey is not None and one.dag_id in editable:
            for pipeline in one.survey.instances.keys() - set(declared):
                orphans.setdefault(pipeline, Orphan(pipeline, one.dag_id))
    return [orphans[pipeline] for pipeline in sorted(orphans)]


def with_slots(found: Found, known: KnownPipeline, others: bool) -> Found:
    """Adds the replication slots. The source is queried for the page of one pipeline only. `others`: whether slots that
    are not the pipeline's are shown as well."""
    if found.survey is None or found.trouble is not None or known.source_conn_id is None:
        return found
    try:
        uri = stored_value(SOURCE, known.source_conn_id, known.team)
        slots = survey_slots(uri, known.id, found.survey.instances)
        return replace(found, slots=slots if others else replace(slots, left_over=()))
    except PgetlError as error:
        return replace(found, slots_trouble=str(error))


def table_of(
    known: Sequence[KnownPipeline], pipeline: str, table: TableName
) -> tuple[KnownPipeline, Found, SurveyedTable]:
    """Returns a table and its pipeline as found now."""
    for one in meant_by(known, pipeline):
        found = find(one, RESOLUTIONS[0])
        if found.trouble is not None:
            raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, found.trouble)
        surveyed = found.table(table)
        if surveyed is not None:
            return one, found, surveyed
    raise HTTPException(status.HTTP_404_NOT_FOUND, "The pipeline has no such table.")


def history_of(known: KnownPipeline, table: TableName) -> TableHistory:
    """Returns the phases of a table that was found, and the versions of its schema."""
    try:
        uri = stored_value(STATE, known.state_conn_id or "", known.team)
        return survey_history(uri, known.id, table)
    except PgetlError as error:
        raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, str(error)) from None


def meant_by(known: Sequence[KnownPipeline], pipeline: str) -> list[KnownPipeline]:
    meant = [each for each in known if each.id == pipeline]
    if not meant:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "There is no such pipeline, or none that you may see.")
    return meant
