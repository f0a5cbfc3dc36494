"""Reports, and the results of verbs, as lines: plain text, or JSON for programs.

Reports go to pipes and log files. Phases and notes are always written; progress of a copy or a stream only at
intervals, and when it is complete. A pipe that its reader has closed must not stop the replication: then lines are
dropped.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TextIO

from airflow_provider_pgetl.cli.board import (
    Board,
    copy_words,
    note_words,
    phase_words,
    printable,
    stream_words,
    table_words,
)
from airflow_provider_pgetl.engine.model.errors import TABLE_ERRORED, Finding
from airflow_provider_pgetl.engine.model.phases import TableState
from airflow_provider_pgetl.engine.model.quantities import format_size
from airflow_provider_pgetl.engine.model.reports import (
    CopyProgressed,
    Noted,
    PhaseReached,
    Report,
    StreamProgressed,
    to_line,
)
from airflow_provider_pgetl.engine.model.results import SchemaVersion, SlotStatus, Status, TableStatus
from airflow_provider_pgetl.engine.model.verification import Difference, TableVerified, Verified

PLAIN_SECONDS = 5.0
JSON_SECONDS = 1.0


class Throttle:
    """Lets each key through once in `interval` seconds."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last: dict[object, float] = {}

    def passes(self, key: object, now: float) -> bool:
        if now - self._last.get(key, float("-inf")) < self._interval:
            return False
        self._last[key] = now
        return True


class LineWriter:
    """Writes whole lines, from any thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._gone = False

    def write(self, line: str) -> None:
        with self._lock:
            if self._gone:
                return
            try:
                self._stream.write(f"{line}\n")
                self._stream.flush()
            except (OSError, ValueError):  # ValueError: the stream is closed
                self._gone = True


class _LineDisplay(ABC):
    """What plain and JSON lines share: the choice of reports that are written."""

    def __init__(self, stream: TextIO, interval: float, clock: Callable[[], float]) -> None:
        self._out = LineWriter(stream)
        self._throttle = Throttle(interval)
        self._clock = clock
        self._board = Board()

    def __call__(self, report: Report) -> None:
        now = self._clock()
        if self._board.tell(report, now) and self._worth_a_line(report, now):
            self._out.write(self._line(report))

    def _worth_a_line(self, report: Report, now: float) -> bool:
        match report:
            case CopyProgressed(table, attempt, done, total):
                complete = done >= total
                return self._throttle.passes((table, attempt, complete), now)
            case StreamProgressed(stream):
                return self._throttle.passes(stream, now)
            case _:
                return True

    @abstractmethod
    def _line(self, report: Report) -> str: ...

    @abstractmethod
    def say(self, text: str) -> None: ...

    def close(self) -> None:  # noqa: B027  lines hold nothing back; a terminal does
        """Does nothing: lines are not buffered."""


class PlainLines(_LineDisplay):
    """Writes lines like ``12:03:04 public.orders: FinishedCopy at 0/1A2B``."""

    def __init__(
        self,
        stream: TextIO,
        interval: float = PLAIN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], str] = lambda: datetime.now().astimezone().strftime("%H:%M:%S"),
    ) -> None:
        super().__init__(stream, interval, clock)
        self._time_of_day = time_of_day

    def say(self, text: str) -> None:
        self._out.write(f"{self._time_of_day()} {printable(text)}")

    def _line(self, report: Report) -> str:
        return f"{self._time_of_day()} {self._words(report)}"

    def _words(self, report: Report) -> str:
        match report:
            case PhaseReached(table, state):
                return f"{table_words(table)}: {phase_words(state)}"
            case CopyProgressed(table):
                return f"{table_words(table)}: copied {copy_words(self._board.copy(table))}"
            case StreamProgressed(stream):
                return f"{stream}: {stream_words(self._board.stream(stream))}"
            case Noted():
                return note_words(report)


class JsonLines(_LineDisplay):
    """Writes reports as `model.reports` encodes them, each with the time, `at`, in seconds since the Unix epoch."""

    def __init__(
        self,
        stream: TextIO,
        interval: float = JSON_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(stream, interval, clock)
        self._wall_clock = wall_clock

    def say(self, text: str) -> None:
        self(Noted("info", text))

    def _line(self, report: Report) -> str:
        data = json.loads(to_line(report))
        return json.dumps({"event": data.pop("event"), "at": self._wall_clock(), **data}, ensure_ascii=False)


# -- The results of verbs: findings, comparisons and status. Pure; `app` prints them. ----------------------------------

_UNKNOWN = "–"


def check_words(errors: Sequence[Finding]) -> str:
    """Returns a summary of the findings."""
    forbidding = sum(error.exit_code != TABLE_ERRORED for error in errors)
    if forbidding:
        return f"{forbidding} of these forbid a run"
    if errors:
        return f"nothing forbids a run, but {len(errors)} of these would make their tables Errored"
    return "nothing stands in the way of a run"


def status_lines(status: Status) -> Iterator[str]:
    """Yields tables, slots, the worker that streams, and what could not be read."""
    yield f"Pipeline {status.pipeline}, instance {status.instance}, epoch {status.epoch}"
    yield streaming_words(status)
    yield ""
    yield from _tables(status.tables)
    yield from _transformed(status.tables)
    if status.slots is not None:
        yield ""
        yield from _slots(status.slots)
    for word, sentences in (("warning", status.warnings), ("unknown", status.unknown)):
        for sentence in sentences:
            yield ""
            yield f"{word}: {printable(sentence)}"


def _transformed(tables: Sequence[TableStatus]) -> Iterator[str]:
    for table in tables:
        uses = ", ".join(f"{column} by {use}" for column, use in table.transformed.items() if use != "keep")
        if uses:
            yield f"{table_words(table.table)} is transformed: {printable(uses)}"


def schema_lines(versions: Sequence[SchemaVersion], state: TableState) -> Iterator[str]:
    """Yields the versions of a table's schema, and the table's phase."""
    rows = [
        (
            str(number),
            str(one.position),
            _UNKNOWN if one.recorded is None else _moment(one.recorded),
            "yes" if one.applied else "not yet",
            printable(one.what),
        )
        for number, one in enumerate(versions, 1)
    ]
    yield from columns([("VERSION", "FROM", "RECORDED", "APPLIED", "WHAT"), *rows])
    yield ""
    yield f"The table is {phase_words(state)}"


def verified_lines(found: Verified) -> Iterator[str]:
    """Yields the result for each table; below one that differs its rows, with keys and columns."""
    for table in found.tables:
        yield from _verified_table(table)
    if found.share < 1:
        yield f"Compared were {found.share:.4g} of all keys; the next time it will be others."
    for name in found.repaired:
        yield f"{table_words(name)} is in Init: a run copies it again."
    if found.before:
        yield ""
        yield "Rows differed before:"
        for table in found.before:
            yield from _verified_table(table)


def _verified_table(table: TableVerified) -> Iterator[str]:
    yield printable(f"{table.in_words()} {table.remedy or ''}".rstrip())
    for row in table.differences:
        yield f"    {printable(_difference(row))}"
    if table.different > len(table.differences):
        yield f"    and {table.different - len(table.differences):,} more"


def _difference(row: Difference) -> str:
    key = ", ".join(f"{name} {value}" for name, value in row.key.items())
    columns = [f"{name} is {here} at the source and {there} here" for name, (here, there) in row.columns.items()]
    return f"{row.kind}: {key}" + (f": {'; '.join(columns)}" if columns else "")


def streaming_words(status: Status) -> str:
    """Returns who streams the pipeline, as a sentence."""
    if status.paused is not None:
        return f"Paused since {_moment(status.paused)}: nothing is streamed, and the source retains its WAL."
    if status.lease is None or status.streamed_by is None:
        return "It is not streamed now."
    return f"Streamed by {printable(status.streamed_by)}, epoch {status.lease.epoch}"


def _tables(tables: Sequence[TableStatus]) -> Iterator[str]:
    if not tables:
        yield "No tables yet: `pgetl run` or `pgetl copy` takes them up."
        return
    lands = any(table.merged is not None for table in tables)
    verified = any(table.verified is not None for table in tables)
    heads = (
        "TABLE",
        "DESTINATION",
        "GENERATION",
        "SINCE",
        "POSITION",
        "LAG",
        *(("MERGE LAG",) if lands else ()),
        *(("VERIFIED",) if verified else ()),
        "PHASE",
    )
    yield from columns([heads, *(_table(table, lands=lands, verified=verified) for table in tables)])


def _verified(table: TableStatus) -> str:
    """Returns up to which position the present copy was found equal or different; nothing of an earlier copy counts."""
    if table.verified is None or not table.is_verified_as_it_is:
        return _UNKNOWN
    verdict = "equal" if table.verified.verdict == "equal" else "DIFFERENT"
    return f"{verdict} up to {table.verified.position}"


def _table(table: TableStatus, *, lands: bool, verified: bool) -> tuple[str, ...]:
    return (
        table_words(table.table),
        _UNKNOWN if table.destination is None else table_words(table.destination),
        str(table.state.generation),
        _UNKNOWN if table.since is None else _moment(table.since),
        _UNKNOWN if table.position is None else str(table.position),
        _size(table.lag_bytes),
        *((_size(table.merge_lag_bytes),) if lands else ()),
        *((_verified(table),) if verified else ()),
        phase_words(table.state),
    )


def _slots(slots: Sequence[SlotStatus]) -> Iterator[str]:
    if not slots:
        yield "No replication slot."
        return
    heads = ("SLOT", "IN USE", "CONFIRMED", "WAL RETAINED", "WAL STATUS")
    yield from columns([heads, *(_slot(slot) for slot in slots)])


def _slot(slot: SlotStatus) -> tuple[str, ...]:
    return (
        slot.name,
        "yes" if slot.active else "no",
        _UNKNOWN if slot.confirmed is None else str(slot.confirmed),
        _size(slot.retained_bytes),
        (slot.wal_status or _UNKNOWN) + (f" ({slot.lost})" if slot.lost else ""),
    )


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the rows as lines of columns that are aligned to the left, with two blanks between them; the last is not
    padded."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _size(size: int | None) -> str:
    return _UNKNOWN if size is None else format_size(size)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")
