"""The current state of all that has been reported. Data alone; `terminal` and `lines` display it.

A board may be written by any thread and read by any other. Time is passed in, so that rates can be tested.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_pgetl.engine.model.phases import (
    CATCHING_UP,
    COPYING,
    Errored,
    Init,
    PhaseName,
    TableState,
    phase_name,
    phase_to_json,
)
from airflow_provider_pgetl.engine.model.quantities import format_duration, format_size
from airflow_provider_pgetl.engine.model.reports import CopyProgressed, Noted, PhaseReached, Report, StreamProgressed
from airflow_provider_pgetl.engine.model.tables import TableName, written

_WINDOW_SECONDS = 10.0


@dataclass(slots=True)
class Rate:
    """The recent rate of growth of a count that only grows."""

    samples: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, now: float, count: int) -> None:
        if self.samples and count < self.samples[-1][1]:
            self.samples.clear()  # another process counts from zero
        self.samples.append((now, count))
        while len(self.samples) > 2 and now - self.samples[0][0] > _WINDOW_SECONDS:
            self.samples.popleft()

    @property
    def per_second(self) -> float:
        if len(self.samples) < 2:
            return 0.0
        (since, before), (until, now) = self.samples[0], self.samples[-1]
        return (now - before) / (until - since) if until > since else 0.0


@dataclass(frozen=True, slots=True)
class CopyView:
    """A table being copied, and its rate in bytes a second."""

    progress: CopyProgressed
    rate: float

    @property
    def share(self) -> float:
        """The share that is done, from 0 to 1. A table may grow beyond what was planned, and an empty one is complete
        at once."""
        total = self.progress.bytes_total
        return min(1.0, self.progress.bytes_done / total) if total else 1.0


@dataclass(frozen=True, slots=True)
class StreamView:
    """A stream, and its rate in changes a second."""

    progress: StreamProgressed
    rate: float


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """The state of all tables, copies and streams at one moment."""

    tables: Mapping[TableName, TableState]
    copies: tuple[CopyView, ...]
    streams: tuple[StreamView, ...]

    @property
    def by_phase(self) -> Mapping[PhaseName, tuple[TableName, ...]]:
        found: dict[PhaseName, list[TableName]] = {}
        for table, state in sorted(self.tables.items(), key=lambda each: each[0]):
            found.setdefault(phase_name(state.phase), []).append(table)
        return {phase: tuple(tables) for phase, tables in found.items()}


class Board:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[TableName, TableState] = {}
        self._copies: dict[TableName, CopyProgressed] = {}
        self._streams: dict[str, StreamProgressed] = {}
        self._rates: dict[TableName | str, Rate] = {}

    def tell(self, report: Report, now: float) -> bool:
        """Records a report. Returns whether it has changed the picture: several components may report the same
        state."""
        with self._lock:
            match report:
                case PhaseReached(table, state):
                    return self._tell_phase(table, state)
                case CopyProgressed(table, _, done):
                    self._copies[table] = report
                    self._rates.setdefault(table, Rate()).add(now, done)
                case StreamProgressed(stream):
                    self._streams[stream] = report
                    self._rates.setdefault(stream, Rate()).add(now, report.changes)
            return True

    def _tell_phase(self, table: TableName, state: TableState) -> bool:
        if self._tables.get(table) == state:
            return False
        self._tables[table] = state
        if phase_name(state.phase) not in COPYING:
            self._copies.pop(table, None)
            self._rates.pop(table, None)
        return True

    def picture(self) -> ProgressSnapshot:
        with self._lock:
            copies = (CopyView(copy, self._rate(table)) for table, copy in sorted(self._copies.items()))
            alive = self._live_streams()
            streams = (StreamView(stream, self._rate(name)) for name, stream in sorted(alive.items()))
            return ProgressSnapshot(dict(self._tables), tuple(copies), tuple(streams))

    def copy(self, table: TableName) -> CopyView:
        """Returns the copy of a table of which a report was just recorded."""
        with self._lock:
            return CopyView(self._copies[table], self._rate(table))

    def stream(self, name: str) -> StreamView:
        with self._lock:
            return StreamView(self._streams[name], self._rate(name))

    def _rate(self, name: TableName | str) -> float:
        rate = self._rates.get(name)
        return rate.per_second if rate else 0.0

    def _live_streams(self) -> Mapping[str, StreamProgressed]:
        """Returns the streams that go on. A group's stream has ended once none of its tables catches up any more."""
        groups = {f"c{state.attempt}" for state in self._tables.values() if phase_name(state.phase) in CATCHING_UP}
        return {name: each for name, each in self._streams.items() if name == "apply" or name in groups}


# -- The texts that plain lines and the terminal share. Pure. ----------------------------------------------------------


def printable(text: str) -> str:
    """Returns the text as one line without control characters: names of tables may contain line ends and terminal
    commands."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def table_words(table: TableName) -> str:
    """Returns the name as the pipeline file and the commands accept it."""
    return printable(written(table))


def note_words(note: Noted) -> str:
    """Returns the note as text; further lines, for instance of a log that it quotes, are indented."""
    first, *more = note.message.strip().splitlines() or [""]
    prefix = "" if note.level == "info" else f"{note.level}: "
    return "\n    ".join(map(printable, [prefix + first, *more]))


def phase_words(state: TableState) -> str:
    """Returns, for example, ``FinishedCopy at 0/1A2B``, or ``Errored: reason Remedy``."""
    if isinstance(state.phase, Errored):
        solution = f" {state.phase.solution}" if state.phase.solution else ""
        return printable(f"Errored: {state.phase.reason}{solution}")
    data = phase_to_json(state.phase)
    where = data.get("boundary") or data.get("position")
    return phase_name(state.phase) + (f" at {where}" if where else "")


def next_words(state: TableState) -> str:
    """Returns what happens next with a table that was rolled back or reset."""
    if isinstance(state.phase, Init):
        return "A run copies it again, whole; until then its rows in the destination stay as they are."
    return "A run goes on from its copy, and applies the changes since."


def copy_words(view: CopyView) -> str:
    progress = view.progress
    volume = f"{format_size(progress.bytes_done)} of {format_size(progress.bytes_total)}"
    return f"{view.share:.0%}, {volume}, {progress.rows:,} rows, {format_size(view.rate)}/s"


def stream_words(view: StreamView) -> str:
    progress = view.progress
    words = f"{view.rate:,.0f} changes/s, {progress.changes:,} so far, {lag_words(view)}"
    if progress.missed:
        words += f", {progress.missed:,} found no row"
    if progress.pause_seconds:
        words += f", paused {format_duration(progress.pause_seconds)} for hand-overs"
    return words


def lag_words(view: StreamView) -> str:
    return f"lag {format_duration(view.progress.lag_seconds)} ({format_size(view.progress.lag_bytes)})"
