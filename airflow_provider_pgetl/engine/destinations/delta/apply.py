"""Applies batches of changes to tables, or writes them to their landings.

Each table of a batch gets one commit, which carries the table's position and the worker's epoch.

Delta has no transactions over several tables. A batch is applied table by table. If it fails half way, the positions
show which tables have moved, and the engine repeats the batch for the others. What readers see is therefore exact for
each table, but not across tables.

Changes are gathered up to `GATHERED_BYTES`, then folded into a net, which is composed with earlier nets of the table.
When the nets of all tables amount to `NET_BYTES`, the largest are merged into the files of their tables; at the end of
the batch, all that remain are. So a batch may be larger than memory. The limit on nets is lower if the process has
little memory, or if other writers hold much of it (`WORKING`). The new files are invisible until the commit, and
nothing is committed before the batch has been read to its end.

After a commit that conflicts with another writer's (`Conflict`), the batch is judged again on the new state of the
table: if a later epoch has claimed it, `fencing` raises; if the other commit was maintenance, the table's changes are
merged again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

from airflow_provider_pgetl.engine.changes.batch import EventBatch, Move, Truncate, WireRows
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.delta import metadata
from airflow_provider_pgetl.engine.destinations.delta.files.key_index import KeyIndexes
from airflow_provider_pgetl.engine.destinations.delta.log.actions import Action
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import Conflict, TableLog
from airflow_provider_pgetl.engine.destinations.delta.log.transactions import LogState
from airflow_provider_pgetl.engine.destinations.delta.merge.file_merge import Changes, Nets
from airflow_provider_pgetl.engine.destinations.delta.merge.landing import Landing, LandingSet
from airflow_provider_pgetl.engine.destinations.delta.merge.merge_on_read import MarkingSet
from airflow_provider_pgetl.engine.destinations.delta.merge.net_changes import as_wire, joined, net_bag, net_changes
from airflow_provider_pgetl.engine.destinations.delta.merge.working_set import WorkingSet
from airflow_provider_pgetl.engine.destinations.delta.metadata import Entries, LakeMetadata
from airflow_provider_pgetl.engine.destinations.delta.shape import DeltaShape, change_entries, truncate_entry
from airflow_provider_pgetl.engine.destinations.protocol import Misses
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.runtime.processes import WORKING, processors, trim

# -- Requests for many tables, several at once: each waits for the object store, and tables are independent. -----------

T = TypeVar("T")
A = TypeVar("A")

_FEW = 4
_AT_ONCE = 16


def each(function: Callable[[T], A], items: Iterable[T], at_once: int = _AT_ONCE) -> list[A]:
    """Calls the function for each item and returns the results in order. Raises the first failure, after all calls
    have ended."""
    asked = list(items)
    if len(asked) < _FEW:
        return [function(item) for item in asked]
    with ThreadPoolExecutor(at_once, "pgetl delta") as threads:
        return list(threads.map(function, asked))


# -- Apply. ------------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

GATHERED_BYTES = 8 << 20
NET_BYTES = 64 << 20
_PATIENCE = 5
_SHARE_OF_NETS = 4
_FOLDED_TIMES = 4  # the changes as sent, in columns, and decoded


class BatchLog(Protocol):
    """The log to which a table's batches are committed: the table's own, or its landing's."""

    def refresh(self) -> bool: ...

    def log_state(self) -> LogState: ...

    def commit(self, actions: Sequence[Action], log_state: LogState) -> None: ...


class BatchSet(Protocol):
    """Turns the changes of a batch into files of the table (see `WorkingSet`) or of its landing (`LandingSet`)."""

    def truncate(self) -> None: ...

    def append(self, tables: Iterable[pa.Table]) -> None: ...

    def merge(self, changes: Changes) -> Misses: ...

    def merge_bag(self, deletes: pa.Table, inserts: pa.Table) -> Misses: ...

    def actions(self) -> list[Action]: ...

    def discard(self) -> None: ...


class Sink(Protocol):
    """Where each table's batches go. Returns the same log for a table each time, and a new set for each batch."""

    def log(self, table: TableName) -> BatchLog: ...

    def table(self, name: TableName) -> TableLog:
        """Returns the table's own log. It is loaded whenever the log returned by `log` is loaded."""

    def begin(self, shape: DeltaShape, published: int, to: Boundary) -> BatchSet:
        """`published`: the copy attempt whose rows the table holds. `to`: the position that the batch leads to."""
        ...


class DeltaApplier:
    """Applies the batches of one writer."""

    def __init__(self, metadata: LakeMetadata, sink: Sink, shape_of: Callable[..., DeltaShape]) -> None:
        self._metadata = metadata
        self._sink = sink
        self._shape_of = shape_of

    def write(self, batch: EventBatch) -> Mapping[TableName, Misses]:
        """Applies the batch. Returns the changes that matched no row, for the tables that this call has moved."""
        misses: dict[TableName, Misses] = {}
        pending = set(batch.moves)
        damages: set[str] = set()
        for _ in range(_PATIENCE):
            tables: dict[TableName, _TableBatch] = {}
            try:
                tables = self._open(batch, pending)
                self._gather(batch, tables)
                committed = each(_TableBatch.commit, tables.values())
                pending = {name for name, done in zip(tables, committed, strict=True) if not done}
            except PgetlError as error:
                if error.kind is not ErrorKind.DAMAGED or error.message in damages:
                    raise
                damages.add(error.message)  # tried again: the log, loaded again, may list other files
            finally:
                for one in tables.values():
                    one.discard()
            misses |= {name: one.misses for name, one in tables.items() if one.committed}
            if not pending:
                return {name: missed for name, missed in misses.items() if missed != Misses()}
        message = f"Others commit to {', '.join(map(str, sorted(pending)))} without end."
        raise PgetlError(ErrorKind.CONNECTION, message)

    def _open(self, batch: EventBatch, names: set[TableName]) -> dict[TableName, _TableBatch]:
        """Opens the tables that are still to be moved. The logs are loaded before the lake metadata. A claim changes
        the metadata first and the logs second, so it is visible in at least one of the two."""
        each(self._refresh, names)
        entries = self._metadata.read()
        opened = {}
        for name in sorted(names):
            table_log = self._sink.log(name)
            self._expect_held(batch, name, entries)
            judged = _judged(batch, batch.moves[name], table_log.log_state(), entries.epoch)
            if judged is not None:
                shape = self._shape_of(batch.moves[name].target.schema)
                files = self._sink.begin(shape, judged.published, batch.moves[name].to)
                opened[name] = _TableBatch(table_log, shape, LogState(judged, batch.epoch), files)
        return opened

    def _refresh(self, name: TableName) -> None:
        with blamed_on(name):
            self._sink.log(name).refresh()

    def _expect_held(self, batch: EventBatch, name: TableName, entries: Entries) -> None:
        """Raises if the published table was lost or replaced. The check is skipped for a superseded writer, for which
        `fencing` raises. A store that is not there at all must not be taken for a lost table."""
        begun = entries.tables.get(name)
        is_current = entries.epoch == batch.epoch
        if begun is not None and is_current and begun.generation <= batch.moves[name].target.generation:
            error = metadata.lost(self._sink.table(name), begun, name)
            if error is not None:
                self._metadata.expect_there()
                raise error

    def _gather(self, batch: EventBatch, tables: Mapping[TableName, _TableBatch]) -> None:
        if not tables:
            return
        for step in batch.steps:
            table = tables.get(step.schema.table)
            if table is None:
                continue
            with blamed_on(step.schema.table):
                table.take(step) if isinstance(step, Truncate) else table.gather(as_wire(step))
            if sum(one.gathered for one in tables.values()) >= GATHERED_BYTES:
                _flush(max(tables.values(), key=lambda one: one.gathered))
                self._make_room(tables.values())
        each(_settle, tables.values(), processors())

    def _make_room(self, tables: Collection[_TableBatch]) -> None:
        """Merges the largest nets until those held are within the limits. Nets of other writers are not touched."""
        share = WORKING.limit // _SHARE_OF_NETS
        while sum(one.held for one in tables) >= min(NET_BYTES, share) or WORKING.held >= share:
            largest = max(tables, key=lambda one: one.held)
            if not largest.held:
                return
            _settle(largest)


def _settle(table: _TableBatch) -> None:
    with blamed_on(table.name):
        table.settle()


def _flush(table: _TableBatch) -> None:
    with blamed_on(table.name):
        table.flush()


class _TableBatch:
    """One table's part of a batch."""

    def __init__(self, table_log: BatchLog, shape: DeltaShape, log_state: LogState, files: BatchSet) -> None:
        self._log = table_log
        self._shape = shape
        self._log_state = log_state
        self._steps: list[WireRows] = []
        self._nets = Nets(self._merge, NET_BYTES)
        self.held = 0
        self.gathered = 0
        self.misses = Misses()
        self.committed = False
        self._may_have_landed = False
        self._files = files

    @property
    def name(self) -> TableName:
        return self._shape.table

    def gather(self, rows: WireRows) -> None:
        self._steps.append(rows)
        self.gathered += rows.buffer.nbytes

    def take(self, truncate: Truncate) -> None:
        """Applies a truncate, after all changes before it."""
        self.settle()
        if self._shape.history:
            self._files.append([truncate_entry(self._shape, truncate)])
        else:
            self._files.truncate()

    def flush(self) -> None:
        if not self._steps:
            return
        rows = joined(self._steps)
        self._steps, self.gathered = [], 0
        if self._shape.history:
            self._files.append([change_entries(self._shape, rows)])
        elif self._shape.key:
            with WORKING.taken(_FOLDED_TIMES * rows.buffer.nbytes):
                net = net_changes(self._shape, rows)
            del rows
            self._nets.add(net)
            self._count_held()
        else:
            self.misses += self._files.merge_bag(*net_bag(self._shape, rows))
        trim()

    def _count_held(self) -> None:
        held = self._nets.nbytes
        WORKING.hold(held - self.held)
        self.held = held

    def _merge(self, net: Changes) -> None:
        self.misses += self._files.merge(net)

    def settle(self) -> None:
        """Merges all changes gathered so far."""
        self.flush()
        self._nets.settle()
        self._count_held()

    def commit(self) -> bool:
        """Returns False if another writer has committed first. After any other failure it is unknown whether the table
        has the files, so they stay; if it does not have them, a vacuum removes them."""
        self._may_have_landed = True
        try:
            with blamed_on(self.name):
                self._log.commit(self._files.actions(), self._log_state)
        except Conflict as conflict:
            self._may_have_landed = False
            log.info("%s was committed to by another writer meanwhile: %s", self.name, conflict)
            return False
        self.committed = True
        return True

    def discard(self) -> None:
        self._nets.drop()
        self._count_held()
        if not self._may_have_landed:
            self._files.discard()


def _judged(batch: EventBatch, move: Move, log_state: LogState, claimed: int | None) -> fencing.TableMetadata | None:
    """Returns the table's record after its move; None if it has moved before. Raises `Fenced` for an earlier epoch."""
    table = move.target.schema.table
    if log_state.epoch > batch.epoch:
        raise Fenced(f"Epoch {batch.epoch} may not write {table}: it belongs to epoch {log_state.epoch}.")
    known = {} if log_state.record is None else {table: log_state.record}
    decided = fencing.write(batch.epoch, claimed, known, [move])
    return None if decided is None else decided[table]


@contextmanager
def blamed_on(table: TableName) -> Iterator[None]:
    """Sets `table` in permanent errors of the block: a wrong value or column concerns its table only."""
    try:
        yield
    except PgetlError as error:
        if error.transient or error.table is not None:
            raise
        raise PgetlError(error.kind, error.message, remedy=error.remedy, table=str(table)) from error


# -- The sinks of a writer's batches: the tables themselves, or their landings. ----------------------------------------


@dataclass(frozen=True, slots=True)
class TableSink:
    """Writes batches into the tables. With `indexes`, rows are marked as deleted; without, files are rewritten."""

    log: Callable[[TableName], TableLog]
    indexes: KeyIndexes | None = None

    def table(self, name: TableName) -> TableLog:
        return self.log(name)

    def begin(self, shape: DeltaShape, published: int, to: Boundary) -> WorkingSet:
        del published, to
        table = self.log(shape.table)
        layout = shape.layout_in(table)
        if shape.history:
            return WorkingSet(table.place, layout, [])
        files = table.files()
        if self.indexes is None:
            return WorkingSet(table.place, layout, files)
        self.indexes.retain(table.place.uri, [one.location for one in files])
        return MarkingSet(table.place, layout, files, self.indexes)


@dataclass(frozen=True, slots=True)
class LandingSink:
    """Writes batches into the landings beside the tables."""

    log: Callable[[TableName], Landing]

    def table(self, name: TableName) -> TableLog:
        return self.log(name).table

    def begin(self, shape: DeltaShape, published: int, to: Boundary) -> LandingSet:
        return LandingSet(self.log(shape.table), shape, published, to)
