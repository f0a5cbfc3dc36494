"""Moving one range: what runs on an executor.

`move_ranges` opens a source session in the exported snapshot and a destination of its own, and lets the one flow into
the other, range by range: as raw COPY blocks where the destination takes those, else as record batches. It knows
nothing of the driver but what is in its arguments, and answers with data, never with an exception: those do not travel
well.

It may be called again for the same range, by itself or by Spark. A destination with a ledger stores a range once,
whatever happens. One without a ledger must not get rows of a range twice in one attempt, so there only what failed
before the first batch was handed over is tried again; later, the table's attempt is given up. (If the whole executor is
lost, Spark begins the range anew without asking: such a destination is at-least-once, as it says itself.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.config import DestinationSpec
from airflow_provider_pgetl.engine.destinations.opening import open_destination, resolved_options
from airflow_provider_pgetl.engine.destinations.protocol import Destination, RangeCopy, RangeRows
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.positions import START, Boundary
from airflow_provider_pgetl.engine.secrets import resolve
from airflow_provider_pgetl.engine.source.connecting import Connection, connect, worker_name
from airflow_provider_pgetl.engine.source.ranges import Range, range_query
from airflow_provider_pgetl.engine.source.reading import Rewritten, imported_snapshot, read_range
from airflow_provider_pgetl.engine.sync.copying.failing import unforeseen
from airflow_provider_pgetl.engine.sync.copying.outcome import Failure
from airflow_provider_pgetl.engine.sync.copying.retrying import PATIENCE, never, persistently
from airflow_provider_pgetl.engine.sync.copying.rows import record_batches, text_batches
from airflow_provider_pgetl.engine.tables import TableName, TableSchema

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where from, where to, in which snapshot. `source` and `destination_uri` are references, or, once `resolved` for
    executors on other machines, the URIs themselves: never shown; so it is with `options`, the destination's.
    `position` is the snapshot's. Trouble that passes is waited out for `patience` seconds."""

    pipeline: str
    attempt: int
    snapshot: str | None
    source: str = field(repr=False)
    destination: DestinationSpec
    destination_uri: str | None = field(repr=False)
    patience: float = PATIENCE
    is_resolved: bool = False
    position: Boundary = START
    options: Mapping[str, Any] | None = field(default=None, repr=False)

    def resolved(self) -> Endpoints:
        if self.is_resolved:
            return self
        uri = None if self.destination_uri is None else resolve(self.destination_uri)
        options = resolved_options(self.destination)
        return replace(self, source=resolve(self.source), destination_uri=uri, is_resolved=True, options=options)

    @property
    def worker(self) -> str:
        return f"c{self.attempt}"

    def open_source(self) -> Connection:
        return connect(self.source, worker_name(self.pipeline, self.worker))

    @contextmanager
    def opened_destination(self) -> Iterator[Destination]:
        destination = open_destination(self.destination, self.destination_uri, self.pipeline, self.worker, self.options)
        try:
            yield destination
        finally:
            destination.shutdown()


@dataclass(frozen=True, slots=True)
class RangeTask:
    """A range with all that is needed to move it. `source` is the schema by which it is read, `target` names where."""

    source: TableSchema
    row_filter: str | None
    range: Range
    target: Target

    @property
    def table(self) -> TableName:
        return self.source.table

    @property
    def number(self) -> int:
        return self.range.number

    @property
    def size(self) -> int:
        return self.range.size


@dataclass(frozen=True, slots=True)
class Outcome:
    """One range is in the destination, with so many rows, or failed. `rewritten`: the snapshot's rows are not in the
    table's file any more, so nothing was stored."""

    table: TableName
    number: int
    rows: int = 0
    failure: Failure | None = None
    rewritten: bool = False


class Stopped(Exception):
    """The range is wanted no more."""


def move_ranges(
    endpoints: Endpoints, tasks: Iterable[RangeTask], stopped: Callable[[], bool] = never
) -> Iterator[Outcome]:
    """Store the ranges' rows, one after the other over the same two sessions; passing trouble is waited out here, and
    ends the sessions. `stopped` is looked at between blocks."""
    with closing(_Sessions(endpoints)) as sessions:
        for task in tasks:
            yield _outcome(endpoints, sessions, task, stopped)


def _outcome(endpoints: Endpoints, sessions: _Sessions, task: RangeTask, stopped: Callable[[], bool]) -> Outcome:
    try:
        rows = persistently(lambda: sessions.move(task, stopped), stopped, endpoints.patience)
    except Rewritten:
        return Outcome(task.table, task.number, rewritten=True)
    except Stopped:
        return _failed(task, PgetlError(ErrorKind.COPY_DIED, f"The copy of {task.table} was stopped."))
    except PgetlError as error:
        return _failed(task, error)
    except Exception as defect:
        # Whatever a person's own destination raises concerns the table that it was given.
        log.exception("Range %d of %s failed", task.number, task.table)
        return _failed(task, unforeseen(f"The copy of {task.table}", defect, str(task.table)))
    return Outcome(task.table, task.number, rows)


def _failed(task: RangeTask, error: PgetlError) -> Outcome:
    return Outcome(task.table, task.number, failure=Failure.of(error))


class _Sessions:
    """A session of the source, in the snapshot, and one of the destination: opened for the first range, and again after
    a failure."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._open = ExitStack()
        self._pair: tuple[Connection, Destination] | None = None

    def move(self, task: RangeTask, stopped: Callable[[], bool]) -> int:
        try:
            return self._move(task, stopped)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._pair = None
        self._open.close()

    def _move(self, task: RangeTask, stopped: Callable[[], bool]) -> int:
        endpoints = self._endpoints = self._endpoints.resolved()
        connection, destination = self._pair = self._pair or self._opened(endpoints)
        if isinstance(destination, RangeCopy):
            return _pass_on(connection, destination, endpoints.attempt, task, stopped)
        if isinstance(destination, RangeRows):
            return _store_rows(connection, destination, endpoints, task, stopped)
        return _hand_over(connection, destination, task, stopped)

    def _opened(self, endpoints: Endpoints) -> tuple[Connection, Destination]:
        connection = self._open.enter_context(closing(endpoints.open_source()))
        self._open.enter_context(imported_snapshot(connection, endpoints.snapshot))
        return connection, self._open.enter_context(endpoints.opened_destination())


def _pass_on(
    connection: Connection, destination: RangeCopy, attempt: int, task: RangeTask, stopped: Callable[[], bool]
) -> int:
    """COPY to COPY; no row is looked at."""
    form = destination.copy_format(task.target.schema)
    query = range_query(task.source, task.range, form, row_filter=task.row_filter)
    with closing(_Blocks(connection, task, query, stopped)) as read:
        stored = destination.write_range(task.target, attempt, task.number, read)
    _check(task, stored, read.rows)
    return stored


def _store_rows(
    connection: Connection, destination: RangeRows, endpoints: Endpoints, task: RangeTask, stopped: Callable[[], bool]
) -> int:
    """As columns of texts, into a ledger."""
    query = range_query(task.source, task.range, "csv", row_filter=task.row_filter)
    with closing(_Blocks(connection, task, query, stopped)) as read:
        batches = text_batches(task.target.schema, read)
        stored = destination.write_range_rows(task.target, endpoints.attempt, task.number, endpoints.position, batches)
    _check(task, stored, read.rows)
    return stored


def _hand_over(connection: Connection, destination: Destination, task: RangeTask, stopped: Callable[[], bool]) -> int:
    """Record batches; once one is handed over, there is no way back."""
    query = range_query(task.source, task.range, "csv", row_filter=task.row_filter)
    stored, is_begun = 0, False
    try:
        with closing(_Blocks(connection, task, query, stopped)) as read:
            for batch in record_batches(task.target.schema, read):
                is_begun = True
                destination.write_table_rows(task.target.schema, batch)
                stored += len(batch)
    except PgetlError as error:
        if is_begun and error.transient:
            message = f"A range of {task.table} broke off after {stored} rows: {error.message}"
            raise PgetlError(ErrorKind.COPY_DIED, message, table=str(task.table)) from error
        raise
    _check(task, stored, read.rows)
    return stored


def _check(task: RangeTask, stored: int, read: int | None) -> None:
    if read is not None and stored != read:
        message = f"Range {task.number} of {task.table} had {read} rows, but {stored} were stored."
        raise PgetlError(ErrorKind.COPY_DIED, message, table=str(task.table))


class _Blocks:
    """The range's COPY stream. `rows` is what the source says it sent, None until it was read to its end.

    To be closed before the session is used for anything else, in particular if it was not read to its end.
    """

    def __init__(self, connection: Connection, task: RangeTask, query: str, stopped: Callable[[], bool]) -> None:
        self._blocks = read_range(connection, task.table, task.range, query)
        self._stopped = stopped
        self.rows: int | None = None

    def __iter__(self) -> Iterator[bytes]:
        while not self._stopped():
            try:
                block = next(self._blocks)
            except StopIteration as end:
                self.rows = end.value
                return
            yield block
        raise Stopped

    def close(self) -> None:
        self._blocks.close()
