"""Renders the pages from what was found of pipelines. Pure, but for the templates, which are read from this folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from airflow_provider_pgetl.engine.model.phases import Errored, Ready, phase_name
from airflow_provider_pgetl.engine.model.quantities import format_duration, format_size
from airflow_provider_pgetl.engine.source.preflight import SlotSurvey
from airflow_provider_pgetl.engine.source.slots import Slot
from airflow_provider_pgetl.engine.state.survey import PipelineSurvey, SurveyedTable
from airflow_provider_pgetl.engine.state.watching import SaidLag
from airflow_provider_pgetl.errored_tables import errored_table
from airflow_provider_pgetl.ui.addresses import anchor
from airflow_provider_pgetl.wording import in_airflow

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

    def retained(self, slot: Slot) -> str:
        """Returns the amount of WAL that the source keeps for the slot."""
        size = None if self.slots is None else slot.retained(self.slots.wal_end)
        return "" if size is None else format_size(size)

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
    environment.filters |= {"duration": format_duration, "phase_name": phase_name, "anchor": anchor}
    environment.filters |= {"in_airflow": in_airflow, "what_to_do": _what_to_do}
    return environment.get_template(name)
