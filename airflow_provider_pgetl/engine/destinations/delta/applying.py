"""Batches of changes into tables, or beside them: one commit for each table, its position and the worker's epoch in it.

Delta has no transactions over several tables. A batch is applied table by table; where it fails half way, the tables
that have moved say so by their positions, and the engine repeats the batch for the others. What readers see is
therefore exact for each table, and not across tables.

Changes are gathered up to `GATHERED_BYTES`, then folded and composed with what went before; nets that amount to
`NET_BYTES` in all tables together, and what remains at the end, are merged into the files of their tables, the largest
first. So a batch may be larger than memory. Nets are less where the process has little memory, or other writers hold
much of it (`WORKING`). Nobody sees those files before the commit, and nothing is committed before the batch has been
read to its end.

A commit that collides with another's (`Conflict`) is judged anew on what the other has left: if that was a successor
of ours, the fence says so; if it was somebody's housekeeping, the table's changes are merged again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

import pyarrow as pa

from airflow_provider_pgetl.engine.changes.batch import EventBatch, Move, Truncate
from airflow_provider_pgetl.engine.changes.rows import WireRows
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.delta import history, occupancy, side_by_side
from airflow_provider_pgetl.engine.destinations.delta.actions import Action
from airflow_provider_pgetl.engine.destinations.delta.book import Book, Entries
from airflow_provider_pgetl.engine.destinations.delta.log import Conflict, Standing, TableLog
from airflow_provider_pgetl.engine.destinations.delta.merging import Changes
from airflow_provider_pgetl.engine.destinations.delta.net_changes import as_wire, joined, net_bag, net_changes
from airflow_provider_pgetl.engine.destinations.delta.nets import Nets
from airflow_provider_pgetl.engine.destinations.delta.shape import Shape
from airflow_provider_pgetl.engine.destinations.protocol import Misses
from airflow_provider_pgetl.engine.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.sparing import trim
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.engine.working_memory import WORKING, processors

log = logging.getLogger(__name__)

GATHERED_BYTES = 8 << 20
NET_BYTES = 64 << 20
_PATIENCE = 5
_SHARE_OF_NETS = 4
_FOLDED_TIMES = 4  # as sent, in columns, and decoded


class BatchLog(Protocol):
    """Where a table's batches are committed: the table's own log, or its landing's."""

    def refresh(self) -> bool: ...

    def standing(self) -> Standing: ...

    def commit(self, actions: Sequence[Action], standing: Standing) -> None: ...


class BatchSet(Protocol):
    """What becomes of a batch's changes: files of the table, or of its landing. See `WorkingSet`."""

    def truncate(self) -> None: ...

    def append(self, tables: Iterable[pa.Table]) -> None: ...

    def merge(self, changes: Changes) -> Misses: ...

    def merge_bag(self, deletes: pa.Table, inserts: pa.Table) -> Misses: ...

    def actions(self) -> list[Action]: ...

    def discard(self) -> None: ...


class Desk(Protocol):
    """Where each table's batches go: the same log for the same table each time, and a new set for each batch."""

    def log(self, table: TableName) -> BatchLog: ...

    def table(self, name: TableName) -> TableLog:
        """The table's own log, which is loaded with the other."""

    def begin(self, shape: Shape, standing: Standing) -> BatchSet: ...


class Applier:
    """For one writer."""

    def __init__(self, book: Book, desk: Desk, shape_of: Callable[..., Shape]) -> None:
        self._book = book
        self._desk = desk
        self._shape_of = shape_of

    def write(self, batch: EventBatch) -> Mapping[TableName, Misses]:
        """What hit no row, of the tables that this call has moved."""
        misses: dict[TableName, Misses] = {}
        pending = set(batch.moves)
        damages: set[str] = set()
        for _ in range(_PATIENCE):
            tables: dict[TableName, _TableBatch] = {}
            try:
                tables = self._open(batch, pending)
                self._gather(batch, tables)
                committed = side_by_side.each(_TableBatch.commit, tables.values())
                pending = {name for name, done in zip(tables, committed, strict=True) if not done}
            except PgetlError as error:
                if error.kind is not ErrorKind.DAMAGED or error.message in damages:
                    raise
                damages.add(error.message)  # unless the log, once it is loaded again, speaks of other files
            finally:
                for one in tables.values():
                    one.discard()
            misses |= {name: one.misses for name, one in tables.items() if one.committed}
            if not pending:
                return {name: missed for name, missed in misses.items() if missed != Misses()}
        message = f"Others commit to {', '.join(map(str, sorted(pending)))} without end."
        raise PgetlError(ErrorKind.CONNECTION, message)

    def _open(self, batch: EventBatch, names: set[TableName]) -> dict[TableName, _TableBatch]:
        """The tables that are still to be moved. Logs are loaded before the book: a claim changes the book first, and
        the logs then, so that one of the two betrays it."""
        side_by_side.each(self._refresh, names)
        entries = self._book.read()
        opened = {}
        for name in sorted(names):
            table_log = self._desk.log(name)
            self._expect_held(batch, name, entries)
            judged = _judged(batch, batch.moves[name], table_log.standing(), entries.epoch)
            if judged is not None:
                shape = self._shape_of(batch.moves[name].target.schema)
                standing = Standing(judged, batch.epoch)
                opened[name] = _TableBatch(table_log, shape, standing, self._desk.begin(shape, standing))
        return opened

    def _refresh(self, name: TableName) -> None:
        with blamed_on(name):
            self._desk.log(name).refresh()

    def _expect_held(self, batch: EventBatch, name: TableName, entries: Entries) -> None:
        """Of a writer that was superseded, the fence tells it. A store that is away altogether has lost no table."""
        begun = entries.tables.get(name)
        is_current = entries.epoch == batch.epoch
        if begun is not None and is_current and begun.generation <= batch.moves[name].target.generation:
            error = occupancy.lost(self._desk.table(name), begun, name)
            if error is not None:
                self._book.expect_there()
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
        side_by_side.each(_settle, tables.values(), processors())

    def _make_room(self, tables: Collection[_TableBatch]) -> None:
        """Merge the largest nets until all that are held are few enough; what other writers hold they must merge."""
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

    def __init__(self, table_log: BatchLog, shape: Shape, standing: Standing, files: BatchSet) -> None:
        self._log = table_log
        self._shape = shape
        self._standing = standing
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
        """A barrier."""
        self.settle()
        if self._shape.history:
            self._files.append([history.truncate_entry(self._shape, truncate)])
        else:
            self._files.truncate()

    def flush(self) -> None:
        if not self._steps:
            return
        rows = joined(self._steps)
        self._steps, self.gathered = [], 0
        if self._shape.history:
            self._files.append([history.change_entries(self._shape, rows)])
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
        """Merge all that was gathered."""
        self.flush()
        self._nets.settle()
        self._count_held()

    def commit(self) -> bool:
        """False if somebody else has committed first. On any other failure nobody knows whether the table has the
        files, so they stay; if it has not, a vacuum takes them."""
        self._may_have_landed = True
        try:
            with blamed_on(self.name):
                self._log.commit(self._files.actions(), self._standing)
        except Conflict as conflict:
            self._may_have_landed = False
            log.info("%s was committed to by somebody else meanwhile: %s", self.name, conflict)
            return False
        self.committed = True
        return True

    def discard(self) -> None:
        self._nets.drop()
        self._count_held()
        if not self._may_have_landed:
            self._files.discard()


def _judged(batch: EventBatch, move: Move, standing: Standing, claimed: int | None) -> fencing.Record | None:
    """The table's record once it has moved; None if it has moved before."""
    table = move.target.schema.table
    if standing.epoch > batch.epoch:
        raise Fenced(f"Epoch {batch.epoch} may not write {table}: it belongs to epoch {standing.epoch}.")
    known = {} if standing.record is None else {table: standing.record}
    decided = fencing.write(batch.epoch, claimed, known, [move])
    return None if decided is None else decided[table]


@contextmanager
def blamed_on(table: TableName) -> Iterator[None]:
    """What is wrong with a value or a column is wrong with its table alone."""
    try:
        yield
    except PgetlError as error:
        if error.transient or error.table is not None:
            raise
        raise PgetlError(error.kind, error.message, remedy=error.remedy, table=str(table)) from error
