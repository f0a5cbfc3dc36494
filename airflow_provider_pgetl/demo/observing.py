"""The state of the demo: the phase of each table, its rows on both sides, how far the replica is behind; and its
display."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Protocol

import psycopg
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from airflow_provider_pgetl.declarations import Replication
from airflow_provider_pgetl.demo.asking import ShownAnswer
from airflow_provider_pgetl.demo.destinations import DemoDestination
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import Errored, PhaseName, phase_name
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.quantities import format_size
from airflow_provider_pgetl.engine.model.results import Status
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.testing import comparing
from airflow_provider_pgetl.testing.servers.postgres_servers import Database


@dataclass(frozen=True, slots=True)
class TableObservation:
    """A table. `phase` is None before the pipeline has registered it; `trouble` is the reason for which it is
    Errored."""

    table: TableName
    phase: PhaseName | None
    rows_here: int | None
    rows_there: int | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """The state of all tables at one moment. `wal_end` is the source's; `durable` is the position up to which the
    replica certainly has the changes."""

    tables: tuple[TableObservation, ...]
    wal_end: Boundary | None = None
    durable: Boundary | None = None

    @property
    def ready(self) -> bool:
        return all(each.phase == "Ready" for each in self.tables)

    def has_reached(self, end: Boundary | None) -> bool:
        """Returns whether everything before `end` is certainly in the replica."""
        return end is not None and self.durable is not None and self.durable >= end

    @property
    def lag_bytes(self) -> int | None:
        if self.wal_end is None or self.durable is None:
            return None
        return max(0, self.wal_end.lsn - self.durable.lsn)


class Onlooker:
    """Reads the state of a pipeline from outside, as `pgetl status` does."""

    def __init__(
        self, replication: Replication, environment: Mapping[str, str], source: Database, destination: DemoDestination
    ) -> None:
        self._pipeline = Pipeline(replication.spec, environment=environment)
        self._tables = replication.tables
        self._source = source
        self._destination = destination

    def close(self) -> None:
        self._pipeline.close()

    def look(self) -> Observation:
        status = self._status()
        phases = {} if status is None else {each.table: each.state.phase for each in status.tables}
        with self._source.connect() as session:
            here = {table: comparing.count(session, table) for table in self._tables}
        looks = []
        for table in self._tables:
            phase = phases.get(table)
            trouble = phase.reason if isinstance(phase, Errored) else ""
            name = None if phase is None else phase_name(phase)
            looks.append(TableObservation(table, name, here[table], self._destination.count(table), trouble))
        if status is None:
            return Observation(tuple(looks))
        return Observation(tuple(looks), status.wal_end, _durable(status))

    def _status(self) -> Status | None:
        """Returns None before `prepare` has run, and while the store does not answer."""
        try:
            return self._pipeline.status() if self._is_prepared() else None
        except PgetlError:
            return None

    def _is_prepared(self) -> bool:
        """Returns whether the store exists. Opening a store creates it, which is left to the DAG."""
        try:
            return self._source.execute("select to_regclass('pgetl.tables') is not null") == [(True,)]
        except psycopg.OperationalError:
            return False


def _durable(status: Status) -> Boundary | None:
    return next((slot.confirmed for slot in status.slots or () if slot.stream == "apply"), None)


# -- How the demo is displayed: a live display on a terminal, lines everywhere else. -----------------------------------

_LINE_SECONDS = 5.0
_STYLES = {"Ready": "green", "Errored": "red", "DataSync": "cyan", None: "dim"}


class Screen(Protocol):
    """The display of the demo."""

    def say(self, text: str) -> None: ...

    def show(self, look: Observation, transactions: int) -> None: ...

    def close(self) -> None: ...


def open_screen() -> Screen:
    return LiveDisplay(Console()) if sys.stdout.isatty() else Lines()


class LiveDisplay:
    """Shows the latest state; messages scroll by above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def say(self, text: str) -> None:
        self._console.print(Text(text))

    def show(self, look: Observation, transactions: int) -> None:
        self._live.update(draw(look, transactions), refresh=True)

    def close(self) -> None:
        self._live.stop()


class Lines:
    """Prints a line for each change of phase, and a summary every few seconds."""

    def __init__(self) -> None:
        self._phases: dict[str, str | None] = {}
        self._due = 0.0

    def say(self, text: str) -> None:
        _write(text)

    def show(self, look: Observation, transactions: int) -> None:
        for each in look.tables:
            if self._phases.get(str(each.table)) != each.phase:
                self._phases[str(each.table)] = each.phase
                _write(f"{each.table}: {each.phase} {each.trouble}".rstrip())
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _LINE_SECONDS
            _write(_summary(look, transactions))

    def close(self) -> None:
        """Does nothing: lines are not buffered."""


def draw(look: Observation, transactions: int) -> RenderableType:
    grid = Table("TABLE", "PHASE", box=None, padding=(0, 2, 0, 0))
    grid.add_column("SOURCE", justify="right")
    grid.add_column("REPLICA", justify="right")
    grid.add_column("")
    for each in look.tables:
        grid.add_row(*_cells(each))
    return Group(grid, Text(_summary(look, transactions), style="bold"))


def answer_as_text(answer: ShownAnswer) -> str:
    """Returns the answer as a text table."""
    grid = Table(*(column.upper() for column in answer.columns), box=None, padding=(0, 3, 0, 0))
    for column in grid.columns[1:]:
        column.justify = "right"
    for row in answer.rows:
        grid.add_row(*(str(value) if isinstance(value, date) else f"{value:,}" for value in row))
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _cells(each: TableObservation) -> tuple[RenderableType, ...]:
    phase = Text(each.phase or "–", style=_STYLES.get(each.phase, "yellow"))
    return Text(str(each.table)), phase, _rows(each.rows_here), _rows(each.rows_there), Text(each.trouble, style="red")


def _rows(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


def _summary(look: Observation, transactions: int) -> str:
    ready = sum(each.phase == "Ready" for each in look.tables)
    lag = "–" if look.lag_bytes is None else format_size(look.lag_bytes)
    return f"{ready} of {len(look.tables)} tables Ready, {transactions:,} transactions in the shop so far, lag {lag}"


def _write(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()
