"""A destination in the memory of one process, for tests, simulations and experiments.

`MemoryStorage` is the "server": it outlives its clients. A `MemoryDestination` is one client; any number of clients
share a storage. All guarantees of the protocol hold, fencing included; fencing uses the same pure decisions as in the
other destinations.

Rows are mappings from column names to the values in the changes (the bytes that the source sent, if the source is a
real one). Changes are applied one by one in the source's order, and a batch that fails is undone.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_provider_pgetl.engine.changes.batch import (
    Change,
    EventBatch,
    Kind,
    Step,
    TablePosition,
    Target,
    Truncate,
)
from airflow_provider_pgetl.engine.changes.versions import alterations, passed_on, version_there
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.protocol import (
    AtomicCopy,
    CopyFormat,
    Destination,
    Misses,
    Part,
    Positions,
    RangeCopy,
    Readable,
    SchemaChange,
    SchemaChanges,
    TableSnapshot,
)
from airflow_provider_pgetl.engine.model.errors import Fenced, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.postgres import copy_format as postgres_copy_format

Row = Mapping[str, Any]
_NUMBERS = itertools.count()


@dataclass(slots=True)
class _Table:
    """Rows by key; rows of a keyless table by a running number."""

    schema: TableSchema
    rows: dict[Hashable, Row] = field(default_factory=dict)

    def key(self, row: Row) -> Hashable:
        return tuple(row[name] for name in self.schema.key) if self.schema.key else next(_NUMBERS)

    def find(self, row: Row) -> Hashable | None:
        """Returns the key in `rows` of the row that `row` identifies; None if there is no such row."""
        if self.schema.key:
            key = self.key(row)
            return key if key in self.rows else None
        return next((number for number, known in self.rows.items() if known == row), None)


@dataclass(slots=True)
class _Staging:
    """The rows that one copy attempt has staged; `ledger` has the number of rows of each range."""

    table: _Table
    ledger: dict[int, int] = field(default_factory=dict)


@dataclass
class MemoryStorage:
    """The state of a destination server. One lock guards it, so that each request is atomic."""

    tables: dict[TableName, _Table] = field(default_factory=dict)
    holders: dict[TableName, str] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    records: dict[tuple[str, TableName], fencing.TableMetadata] = field(default_factory=dict)
    staging: dict[tuple[str, TableName, int], _Staging] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)


_SHARED: dict[str, MemoryStorage] = {}


def shared_storage(name: str) -> MemoryStorage:
    """Returns the storage of this name; every call in this process returns the same one."""
    return _SHARED.setdefault(name, MemoryStorage())


class _Undo:
    """Undoes changes to tables in the reverse order."""

    def __init__(self) -> None:
        self._steps: list[tuple[_Table, Hashable, Row | None]] = []
        self._truncated: list[tuple[int, _Table, dict[Hashable, Row]]] = []

    def put(self, table: _Table, key: Hashable, row: Row) -> None:
        self._steps.append((table, key, table.rows.get(key)))
        table.rows[key] = row

    def remove(self, table: _Table, key: Hashable) -> Row:
        row = table.rows.pop(key)
        self._steps.append((table, key, row))
        return row

    def truncate(self, table: _Table) -> None:
        self._truncated.append((len(self._steps), table, table.rows))
        table.rows = {}

    def undo(self) -> None:
        while self._steps or self._truncated:
            if self._truncated and self._truncated[-1][0] == len(self._steps):
                _, table, rows = self._truncated.pop()
                table.rows = rows
                continue
            table, key, before = self._steps.pop()
            if before is None:
                del table.rows[key]
            else:
                table.rows[key] = before


class MemoryDestination(Destination, AtomicCopy, RangeCopy, Positions, SchemaChanges, Readable):
    """A client of a `MemoryStorage`."""

    def __init__(self, storage: MemoryStorage | None = None) -> None:
        self.storage = storage or MemoryStorage()
        self._misses: dict[TableName, Misses] = {}

    @property
    def name(self) -> str:
        return "memory"

    def rows(self, table: TableName) -> list[Row]:
        """Returns the table's rows in no particular order."""
        return list(self.storage.tables[table].rows.values())

    def tables(self) -> frozenset[TableName]:
        return frozenset(self.storage.tables)

    def misses(self) -> Mapping[TableName, Misses]:
        return dict(self._misses)

    def shutdown(self) -> None:
        """There is nothing to close."""

    # -- the plain contract

    def drop_table_for_copy(self, schema: TableSchema) -> None:
        with self.storage.lock:
            self.storage.tables.pop(schema.table, None)
            self.storage.holders.pop(schema.table, None)
            for key, record in list(self.storage.records.items()):
                if key[1] == schema.table:
                    bare = fencing.TableMetadata(record.generation, record.attempt)
                    self.storage.records[key] = bare

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        with self.storage.lock:
            table = self.storage.tables.setdefault(schema.table, _Table(schema))
            table.rows.update((table.key(row), row) for row in rows.to_pylist())

    def write_events(self, batch: EventBatch) -> None:
        with self.storage.lock:
            records = self._decide(batch)
            if records is None:
                return
            with self._undone_on_failure() as undo:
                misses = [missed for step in batch.steps for missed in self._apply(undo, step)]
            for table, record in records.items():
                self.storage.records[batch.pipeline, table] = record
            for table, missed in misses:
                self._misses[table] = self._misses.get(table, Misses()) + missed

    def _decide(self, batch: EventBatch) -> Mapping[TableName, fencing.TableMetadata] | None:
        known = {table: self.storage.records.get((batch.pipeline, table)) for table in batch.moves}
        records = {table: record for table, record in known.items() if record is not None}
        return fencing.write(batch.epoch, self.storage.epochs.get(batch.pipeline), records, batch.moves.values())

    @contextmanager
    def _undone_on_failure(self) -> Iterator[_Undo]:
        undo = _Undo()
        try:
            yield undo
        except BaseException:
            undo.undo()
            raise

    def _apply(self, undo: _Undo, step: Step) -> Iterator[tuple[TableName, Misses]]:
        table = self.storage.tables[step.schema.table]
        if isinstance(step, Truncate):
            undo.truncate(table)
            return
        for change in step.changes():
            if not _change(undo, table, change):
                is_update = change.kind is Kind.UPDATE
                yield step.schema.table, Misses(updates=int(is_update), deletes=int(not is_update))

    # -- schema changes

    def why_not(self, change: SchemaChange) -> str | None:
        """Rows are mappings of any form; but one may still have the value of a column that was dropped or renamed."""
        *earlier, _ = change.versions
        return passed_on(change.versions, {column.name for version in earlier for column in version.columns})

    def change_schema(self, change: SchemaChange, epoch: int) -> None:
        target, schema = change.target, change.target.schema
        with self.storage.lock:
            if self.storage.epochs.get(target.pipeline) != epoch:
                raise Fenced(f"Epoch {epoch} may not alter {schema.table}.")
            record = self.storage.records.get((target.pipeline, schema.table))
            if record is None or record.generation != target.generation:
                raise Fenced(f"{schema.table} is of another generation.", table=str(schema.table))
            table = self.storage.tables[schema.table]
            found = alterations(version_there(change.versions, table.schema.names), schema)
            values = {one.name: None if one.missing is None else one.missing.encode() for one in found.added}
            names = {before.name: after.name for before, after in found.renamed}
            for key, row in table.rows.items():
                kept = {names.get(name, name): value for name, value in row.items() if name not in change.dropped}
                table.rows[key] = {**values, **kept}
            table.schema = schema

    # -- copies

    def begin_copy(self, target: Target, attempt: int) -> None:
        table = target.schema.table
        with self.storage.lock:
            before = self.storage.records.get((target.pipeline, table))
            record = fencing.begin(before, target.generation, attempt, table)
            if record == before:
                return
            self._expect_free(target)
            self._drop_staging(target.pipeline, table)
            self.storage.records[target.pipeline, table] = record
            self.storage.staging[target.pipeline, table, attempt] = _Staging(_Table(target.schema))

    def stage(self, target: Target, attempt: int, number: int, rows: Iterable[Row]) -> int:
        """Stores one range's rows unless the ledger has the range; returns the number of its rows."""
        table = target.schema.table
        with self.storage.lock:
            record = self.storage.records.get((target.pipeline, table))
            fencing.check_range(record, target.generation, attempt, table)
            staging = self._staging(target, attempt)
            if number not in staging.ledger:
                fresh = {staging.table.key(row): row for row in rows}
                staging.table.rows.update(fresh)
                staging.ledger[number] = len(fresh)
            return staging.ledger[number]

    def copy_format(self, schema: TableSchema) -> CopyFormat:
        del schema
        return "text"

    def write_range(self, target: Target, attempt: int, number: int, blocks: Iterable[bytes]) -> int:
        return self.stage(target, attempt, number, postgres_copy_format.rows(target.schema.names, blocks))

    def finish_copy(self, target: Target, attempt: int, position: Boundary, ranges: int | None = None) -> None:
        table = target.schema.table
        with self.storage.lock:
            before = self.storage.records.get((target.pipeline, table))
            record = fencing.finish(before, target.generation, attempt, position, table)
            if record is None:
                return
            staged = self._staging(target, attempt)
            fencing.expect_ranges(len(staged.ledger), ranges, attempt, table)
            self._expect_free(target)
            self.storage.tables[table] = staged.table
            self.storage.holders[table] = target.pipeline
            self.storage.records[target.pipeline, table] = record
            self._drop_staging(target.pipeline, table)

    def abort_copy(self, target: Target, attempt: int) -> None:
        with self.storage.lock:
            self.storage.staging.pop((target.pipeline, target.schema.table, attempt), None)

    def foreign_rows(self, pipeline: str, tables: Collection[TableName]) -> Mapping[TableName, str]:
        with self.storage.lock:
            holders, filled = self.storage.holders, {name for name, table in self.storage.tables.items() if table.rows}
            of_others = [table for table in tables if table in filled and holders.get(table) != pipeline]
            return {table: fencing.rows_of(holders.get(table)) for table in of_others}

    def _expect_free(self, target: Target) -> None:
        table = target.schema.table
        if not target.replaces:
            for holds in self.foreign_rows(target.pipeline, [table]).values():
                raise fencing.refusal(table, holds)

    def _staging(self, target: Target, attempt: int) -> _Staging:
        table = target.schema.table
        staging = self.storage.staging.get((target.pipeline, table, attempt))
        if staging is None:
            raise Fenced(f"Copy attempt {attempt} of {table} was aborted.", table=str(table))
        return staging

    def _drop_staging(self, pipeline: str, table: TableName) -> None:
        for key in [key for key in self.storage.staging if key[:2] == (pipeline, table)]:
            del self.storage.staging[key]

    # -- reading

    @contextmanager
    def snapshots(
        self, pipeline: str, schemas: Collection[TableSchema]
    ) -> Iterator[Mapping[TableName, TableSnapshot | PgetlError]]:
        with self.storage.lock:
            found = {schema.table: self._snapshot(pipeline, schema) for schema in schemas}
        yield found

    def _snapshot(self, pipeline: str, schema: TableSchema) -> TableSnapshot | PgetlError:
        table, record = self.storage.tables.get(schema.table), self.storage.records.get((pipeline, schema.table))
        if table is None or record is None or record.position is None:
            return fencing.dropped(schema.table)
        return MemorySnapshot(record.position, schema.names, list(table.rows.values()))

    # -- positions

    def claim(self, pipeline: str, epoch: int) -> None:
        with self.storage.lock:
            self.storage.epochs[pipeline] = fencing.claim(self.storage.epochs.get(pipeline), epoch)

    def forget(self, pipeline: str) -> bool:
        storage = self.storage
        with storage.lock:
            owners = {*storage.epochs, *(key[0] for key in (*storage.records, *storage.staging))}
            storage.epochs.pop(pipeline, None)
            storage.records = {key: record for key, record in storage.records.items() if key[0] != pipeline}
            storage.staging = {key: staged for key, staged in storage.staging.items() if key[0] != pipeline}
        return pipeline in owners

    def positions(self, pipeline: str) -> Mapping[TableName, TablePosition]:
        with self.storage.lock:
            return {
                table: record.table_position
                for (owner, table), record in self.storage.records.items()
                if owner == pipeline and record.table_position is not None
            }

    def latest_attempt(self, pipeline: str) -> int:
        with self.storage.lock:
            return max(
                (one.attempt for (owner, _), one in self.storage.records.items() if owner == pipeline), default=0
            )

    def adopt(self, target: Target) -> None:
        key = target.pipeline, target.schema.table
        with self.storage.lock:
            record = self.storage.records.get(key)
            self.storage.records[key] = fencing.adopt(record, target.generation, target.schema.table)


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """A table's rows; their values are the texts that the source sent."""

    position: Boundary
    names: Sequence[str]
    rows: Sequence[Row]

    def held(self, texts: pa.Table) -> pa.Table:
        return texts

    def parts(self, keys: pa.Table | None = None) -> Sequence[Part]:
        del keys  # all rows are one part
        return [self._read]

    def _read(self) -> Iterator[pa.Table]:
        columns = [pa.array([row[name] for row in self.rows], pa.binary()) for name in self.names]
        yield pa.Table.from_arrays(columns, names=list(self.names))


def _change(undo: _Undo, table: _Table, change: Change) -> bool:
    """Applies one change; returns False if it matched no row."""
    if change.kind is Kind.INSERT:
        assert change.new is not None, "an insert has a new row"
        undo.put(table, table.key(change.new), dict(change.new))
        return True
    known_by = change.old if change.old is not None else change.new
    assert known_by is not None, "a change has an old row, a new row, or both"
    found = table.find(known_by)
    if found is None:
        return False
    row = undo.remove(table, found)
    if change.new is not None:
        whole = {**row, **change.new}
        undo.put(table, table.key(whole), whole)
    return True
