"""Moving ranges from the source to the destination: the code that runs on an executor.

`move_ranges` opens a source session in the exported snapshot and a session of the destination, and transfers the rows
range by range: as raw COPY blocks if the destination accepts those, otherwise as record batches. It depends only on its
arguments and shares nothing with the driver. It returns errors as data and never raises them, because exceptions do not
survive the transport.

A range may be moved more than once, by this module or by Spark. A destination with a ledger stores a range once in any
case. A destination without a ledger must not get rows of a range twice in one attempt, so there a failure is retried
only until the first batch is handed over; after that, the table's attempt is given up. (If a whole executor is lost,
Spark starts the range again by itself: such a destination is at-least-once, as `destinations.protocol` says.)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.config.secrets import resolve, resolve_key
from airflow_provider_pgetl.engine.config.spec import DestinationSpec
from airflow_provider_pgetl.engine.copy.rows import record_batches, text_batches
from airflow_provider_pgetl.engine.destinations.protocol import (
    Destination,
    RangeCopy,
    RangeRows,
    opened_destination,
    resolved_options,
)
from airflow_provider_pgetl.engine.model.errors import ErrorData, ErrorKind, PgetlError, unforeseen
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.postgres.copy_format import copy_text
from airflow_provider_pgetl.engine.runtime.threads import PATIENCE, never, persistently
from airflow_provider_pgetl.engine.source.connecting import Connection, connect, worker_name
from airflow_provider_pgetl.engine.source.range_reading import (
    Range,
    Rewritten,
    imported_snapshot,
    range_query,
    read_range,
)
from airflow_provider_pgetl.engine.transform.keyed import Keys
from airflow_provider_pgetl.engine.transform.rules import TableRules
from airflow_provider_pgetl.engine.transform.tables import TableTransform

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The source, the destination and the snapshot of a copy. `source` and `destination_uri` are references to secrets
    or, once `resolved` for executors on other machines, the URIs themselves; they and `options`, the options of the
    destination, are excluded from the representation. `position` is the snapshot's position. Transient errors are
    retried for `patience` seconds. `transform_keys` are the keys of rules by their references; the references once more
    until they are resolved."""

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
    transform_keys: Mapping[str, str] = field(default_factory=dict, repr=False)

    def resolved(self) -> Endpoints:
        if self.is_resolved:
            return self
        uri = None if self.destination_uri is None else resolve(self.destination_uri)
        options, keys = resolved_options(self.destination), {one: resolve_key(one) for one in self.transform_keys}
        source = resolve(self.source)
        return replace(self, source=source, destination_uri=uri, is_resolved=True, options=options, transform_keys=keys)

    @property
    def worker(self) -> str:
        return f"c{self.attempt}"

    def open_source(self) -> Connection:
        return connect(self.source, worker_name(self.pipeline, self.worker))

    def opened_destination(self) -> AbstractContextManager[Destination]:
        uri = self.destination_uri
        return opened_destination(self.destination, uri, self.pipeline, self.worker, self.options)


@dataclass(frozen=True, slots=True)
class RangeTask:
    """One range and all that is needed to move it. `source` is the schema with which the range is read; `target` is the
    table in the destination. `rules`: how its values are transformed; None if they are not."""

    source: TableSchema
    row_filter: str | None
    range: Range
    target: Target
    rules: TableRules | None = None

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
class RangeOutcome:
    """The result of one range: `rows` rows are stored in the destination, or `failure`. `rewritten`: the table's file
    no longer contains the snapshot's rows, so nothing was stored."""

    table: TableName
    number: int
    rows: int = 0
    failure: ErrorData | None = None
    rewritten: bool = False


class Stopped(Exception):
    """The range is no longer wanted."""


def move_ranges(
    endpoints: Endpoints, tasks: Iterable[RangeTask], stopped: Callable[[], bool] = never
) -> Iterator[RangeOutcome]:
    """Moves the ranges one after the other over the same two sessions. Transient errors are retried here, with new
    sessions. `stopped` is checked between blocks."""
    with closing(_Sessions(endpoints)) as sessions:
        for task in tasks:
            yield _outcome(endpoints, sessions, task, stopped)


def _outcome(endpoints: Endpoints, sessions: _Sessions, task: RangeTask, stopped: Callable[[], bool]) -> RangeOutcome:
    try:
        rows = persistently(lambda: sessions.move(task, stopped), stopped, endpoints.patience)
    except Rewritten:
        return RangeOutcome(task.table, task.number, rewritten=True)
    except Stopped:
        return _failed(task, PgetlError(ErrorKind.COPY_DIED, f"The copy of {task.table} was stopped."))
    except PgetlError as error:
        return _failed(task, error)
    except Exception as defect:
        # An exception of a custom destination concerns the table that it was given.
        log.exception("Range %d of %s failed", task.number, task.table)
        return _failed(task, unforeseen(f"The copy of {task.table}", defect, str(task.table)))
    return RangeOutcome(task.table, task.number, rows)


def _failed(task: RangeTask, error: PgetlError) -> RangeOutcome:
    return RangeOutcome(task.table, task.number, failure=ErrorData.of(error))


class _Sessions:
    """A session of the source, in the snapshot, and one of the destination. They are opened for the first range and
    again after a failure."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._open = ExitStack()
        self._pair: tuple[Connection, Destination] | None = None
        self._transforms: dict[TableName, TableTransform] = {}

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
        transform = self._transform(task)
        if isinstance(destination, RangeCopy):
            if transform is not None:
                return _pass_on_transformed(connection, destination, endpoints.attempt, task, transform, stopped)
            return _pass_on(connection, destination, endpoints.attempt, task, stopped)
        if isinstance(destination, RangeRows):
            return _store_rows(connection, destination, endpoints, task, transform, stopped)
        return _hand_over(connection, destination, task, transform, stopped)

    def _transform(self, task: RangeTask) -> TableTransform | None:
        if task.rules is None:
            return None
        if task.table not in self._transforms:
            self._transforms[task.table] = TableTransform(task.rules, Keys(self._endpoints.transform_keys))
        return self._transforms[task.table]

    def _opened(self, endpoints: Endpoints) -> tuple[Connection, Destination]:
        connection = self._open.enter_context(closing(endpoints.open_source()))
        self._open.enter_context(imported_snapshot(connection, endpoints.snapshot))
        return connection, self._open.enter_context(endpoints.opened_destination())


def _pass_on(
    connection: Connection, destination: RangeCopy, attempt: int, task: RangeTask, stopped: Callable[[], bool]
) -> int:
    """Passes the COPY stream on as it is, without looking at rows."""
    form = destination.copy_format(task.target.schema)
    query = range_query(task.source, task.range, form, row_filter=task.row_filter)
    with closing(_Blocks(connection, task, query, stopped)) as read:
        stored = destination.write_range(task.target, attempt, task.number, read)
    _check(task, stored, read.rows)
    return stored


def _pass_on_transformed(
    connection: Connection,
    destination: RangeCopy,
    attempt: int,
    task: RangeTask,
    transform: TableTransform,
    stopped: Callable[[], bool],
) -> int:
    """Passes on a COPY stream of transformed values, in text, which `TableSchema.as_text` makes the destination
    expect."""
    query = range_query(task.source, task.range, "csv", row_filter=task.row_filter)
    with closing(_Blocks(connection, task, query, stopped)) as read:
        blocks = (copy_text(batch.columns) for batch in text_batches(task.source, read, transform=transform))
        stored = destination.write_range(task.target, attempt, task.number, blocks)
    _check(task, stored, read.rows)
    return stored


def _store_rows(
    connection: Connection,
    destination: RangeRows,
    endpoints: Endpoints,
    task: RangeTask,
    transform: TableTransform | None,
    stopped: Callable[[], bool],
) -> int:
    """Stores columns of text in a destination with a ledger."""
    query = range_query(task.source, task.range, "csv", row_filter=task.row_filter)
    with closing(_Blocks(connection, task, query, stopped)) as read:
        batches = text_batches(task.target.schema, read, transform=transform)
        stored = destination.write_range_rows(task.target, endpoints.attempt, task.number, endpoints.position, batches)
    _check(task, stored, read.rows)
    return stored


def _hand_over(
    connection: Connection,
    destination: Destination,
    task: RangeTask,
    transform: TableTransform | None,
    stopped: Callable[[], bool],
) -> int:
    """Hands over record batches. Once a batch was handed over, the range cannot be retried."""
    query = range_query(task.source, task.range, "csv", row_filter=task.row_filter)
    stored, is_begun = 0, False
    try:
        with closing(_Blocks(connection, task, query, stopped)) as read:
            for batch in record_batches(task.target.schema, read, transform=transform):
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
    """The COPY stream of a range. `rows` is the number of rows that the source reports to have sent; None until the
    stream was read to its end.

    It must be closed before the session is used for anything else, in particular if it was not read to its end.
    """

    def __init__(self, connection: Connection, task: RangeTask, query: str, stopped: Callable[[], bool]) -> None:
        self._blocks = read_range(connection, task.table, task.range, query)
        self._stopped = stopped
        self._table = task.table
        self._is_private = task.rules is not None
        self.rows: int | None = None

    def _about_a_value(self) -> PgetlError:
        """Returns the error without the server's words, which quote the value."""
        message = f"{self._table} could not be read: a value cannot be converted, or its row filter fails on one."
        return PgetlError(ErrorKind.VALUE, message, table=str(self._table))

    def __iter__(self) -> Iterator[bytes]:
        while not self._stopped():
            try:
                block = next(self._blocks)
            except StopIteration as end:
                self.rows = end.value
                return
            except PgetlError as error:
                if self._is_private and error.kind is ErrorKind.VALUE:
                    raise self._about_a_value() from None
                raise
            yield block
        raise Stopped

    def close(self) -> None:
        self._blocks.close()
