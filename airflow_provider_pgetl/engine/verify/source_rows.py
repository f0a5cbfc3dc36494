"""Reads the source's rows as of an exported snapshot, part by part, without disturbing the source.

A part is a range of blocks, as a copy reads it, or the rows of some keys. Only ACCESS SHARE locks are taken, and held
no longer than the part is read: rolling back to a savepoint releases the lock and restores `statement_timeout`. Rows
are read no faster than the declared rate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from psycopg import pq

from airflow_provider_pgetl.engine.changes.batch import sealed_rows
from airflow_provider_pgetl.engine.changes.tuples import Tuples
from airflow_provider_pgetl.engine.context import SlotStream
from airflow_provider_pgetl.engine.destinations.protocol import Part
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import START, Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.tables import Column, TableName, TableSchema
from airflow_provider_pgetl.engine.postgres.copy_format import CSV_OPTIONS, SUMS, among, sums_query, text_tables
from airflow_provider_pgetl.engine.runtime.threads import THREADS, Runtime
from airflow_provider_pgetl.engine.source.catalog import PublishedTable
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.source.range_reading import copy_blocks, lock_file, plan_ranges, range_source
from airflow_provider_pgetl.engine.transform.tables import TableTransform
from airflow_provider_pgetl.engine.wal.assembler import Assembler
from airflow_provider_pgetl.engine.wal.pgoutput import Commit, Feedback, Keepalive, TruncateMessage
from airflow_provider_pgetl.engine.wal.spool import AssembledStep, Budget, Sealed, Spool

RANGE_BYTES = 64 << 20
RANGE_SECONDS = 600
_SLOW_RANGE_BYTES = 4 << 20
_SLOW_BATCH_BYTES = 256 << 10
_LEAST_ROW_BYTES = 28
_KEYS_AT_ONCE = 500


class ReadLimit:
    """Limits reading to an average number of rows per second, counted from the first row; None is no limit. For one
    thread."""

    def __init__(self, rows_per_second: float | None) -> None:
        self.rows_per_second = rows_per_second
        self._begun: float | None = None
        self._rows = 0

    def keep(self, rows: int) -> None:
        """Must be called after each batch of `rows` rows; sleeps as long as necessary."""
        if self.rows_per_second is None:
            return
        now = time.monotonic()
        self._begun = now if self._begun is None else self._begun
        self._rows += rows
        time.sleep(max(0.0, self._begun + self._rows / self.rows_per_second - now))


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table in the snapshot that the connection's transaction has imported. Its rows are read as they are to be in
    the destination: with `transform`, transformed."""

    connection: Connection
    published: PublishedTable
    rate: ReadLimit
    transform: TableTransform | None = None

    def parts(self, keys: pa.Table | None = None) -> Sequence[Part]:
        """Returns the parts; see `TableSnapshot.parts`. Rows cannot be found by a key that is transformed."""
        schema = self.published.schema
        columns = ", ".join(column.sql for column in schema.columns)
        return [
            self._part(relations, f"COPY (SELECT {columns} {source}) TO STDOUT ({CSV_OPTIONS})", schema.names, size)
            for relations, source, size in self._sources(keys if self.finds_keys else None)
        ]

    def sums(self, names: Sequence[str], keys: pa.Table | None = None) -> Sequence[Part]:
        """See `destinations.protocol.Summing`. Sums are of the values that the server has: not of transformed ones."""
        assert self.transform is None, "the destination has other values"
        values = [self._named[name].sql for name in names]
        return [
            self._part(relations, sums_query(values, source), SUMS, size)
            for relations, source, size in self._sources(keys)
        ]

    @property
    def finds_keys(self) -> bool:
        """Whether rows can be found by the texts of their keys; not by those of a key that is transformed."""
        key = self.published.schema.key
        if self.transform is not None and self.transform.changes(key):
            return False
        return bool(key) and all(self._named[name].type.root.built_in for name in key)

    @property
    def _named(self) -> dict[str, Column]:
        return {column.name: column for column in self.published.schema.columns}

    def _sources(self, keys: pa.Table | None) -> Iterator[tuple[Sequence[str], str, int]]:
        """Yields, for each part of all rows or of the rows of these keys, the tables to lock, the FROM clause, and the
        size in bytes."""
        schema, leaves, row_filter = self.published.schema, self.published.leaves, self.published.row_filter
        if keys is None:
            size = RANGE_BYTES if self.rate.rows_per_second is None else _SLOW_RANGE_BYTES
            for one in plan_ranges(leaves, size):
                yield [one.relation.sql], range_source(one, row_filter), one.size
            return
        key = [self._named[name] for name in schema.key]
        only = "ONLY " if [leaf.name for leaf in leaves] == [schema.table] else ""
        filtered = "" if row_filter is None else f" AND ({row_filter})"
        for start in range(0, keys.num_rows, _KEYS_AT_ONCE):
            found = among([one.sql for one in key], [one.sql_type for one in key], keys.slice(start, _KEYS_AT_ONCE))
            yield [leaf.name.sql for leaf in leaves], f"FROM {only}{schema.table.sql} WHERE {found}{filtered}", 0

    def _part(self, relations: Sequence[str], query: str, names: Sequence[str], size: int) -> Part:
        return lambda: self._read(relations, query, names, size)

    def _read(self, relations: Sequence[str], query: str, names: Sequence[str], size: int) -> Iterator[pa.Table]:
        rate = self.rate
        batch_bytes = {} if rate.rows_per_second is None else {"size": _SLOW_BATCH_BYTES}
        with _bounded(self.connection, self._seconds(size)):
            self._lock(relations)
            blocks = copy_blocks(self.connection, query, str(self.published.table))
            for table in text_tables(names, blocks, **batch_bytes):
                if names is SUMS:
                    yield table
                    rate.keep(int(table.column("rows")[0].as_py()))
                else:
                    yield table if self.transform is None else self._transformed(self.transform, table)
                    rate.keep(table.num_rows)

    def _transformed(self, transform: TableTransform, table: pa.Table) -> pa.Table:
        arrays = [column.combine_chunks() for column in table.columns]
        return pa.Table.from_arrays(transform.arrays(arrays), names=table.column_names)

    def _seconds(self, size: int) -> float:
        rows_per_second = self.rate.rows_per_second
        slow = 0.0 if rows_per_second is None else 2 * size / _LEAST_ROW_BYTES / rows_per_second
        return max(RANGE_SECONDS, slow)

    def _lock(self, relations: Sequence[str]) -> None:
        for one in plan_ranges(self.published.leaves, 1 << 60):  # one range per file
            if one.relation.sql in relations:
                lock_file(self.connection, self.published.table, one)


@contextmanager
def _bounded(connection: Connection, seconds: float) -> Iterator[None]:
    """Releases the locks and settings made within the context; a statement that takes longer than `seconds` fails."""
    with server_errors("The source could not be read"):
        connection.execute("SAVEPOINT part")
        connection.execute(f"SET LOCAL statement_timeout = {round(seconds * 1000)}".encode())
    try:
        yield
    finally:
        status = connection.pgconn.transaction_status
        if status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
            connection.execute("ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part")


# -- The rows that changed between two positions, as a slot reports them. ----------------------------------------------
#
# The rows of the two sides are those of two positions: the source's are those at the slot's consistent point, the
# destination's those at each table's position. A row that was changed in between is on one side only, and is no
# difference. The changes need not be recorded beforehand, because the slot holds them. The slot is read as far as
# necessary, and nothing is confirmed, so that a slot that belongs to the pipeline is left as it was.
#
# A change counts for a table if ``after <= commit_lsn < before`` (protocol: everything before a boundary is exactly
# ``commit_lsn < boundary``). Of each change, the keys before and after it count; for a table without a key, the whole
# rows. After a TRUNCATE, a change of columns, or more keys than `KEYS_AT_MOST`, the whole table counts as changed.

KEYS_AT_MOST = 200_000
_ASK_SECONDS = 0.2
_BUDGET_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Window:
    """The changes of a table, described by `schema`, from `after` on and before `before`."""

    schema: TableSchema
    after: Boundary
    before: Boundary
    transform: TableTransform | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return self.schema.key or self.schema.names

    def holds(self, commit_lsn: CommitLsn) -> bool:
        return self.before.covers(commit_lsn) and not self.after.covers(commit_lsn)


@dataclass(slots=True)
class Changed:
    """The changed rows of one table. `keys`: the texts of the key columns; a key may occur several times."""

    names: tuple[str, ...]
    whole: bool = False
    batches: list[pa.Table] = field(default_factory=list)
    count: int = 0

    @property
    def any(self) -> bool:
        return self.whole or self.count > 0

    @property
    def keys(self) -> pa.Table:
        empty = pa.table({name: pa.array([], pa.binary()) for name in self.names})
        return pa.concat_tables([empty, *self.batches]).combine_chunks()

    def add(self, keys: pa.Table) -> None:
        if self.whole or not keys.num_rows:
            return
        self.batches.append(keys)
        self.count += keys.num_rows
        if self.count > KEYS_AT_MOST:
            self._thin_out()

    def add_all(self) -> None:
        self.whole, self.batches, self.count = True, [], 0

    def _thin_out(self) -> None:
        """Removes repeated keys. If at most half of `KEYS_AT_MOST` remain, more can be added; otherwise the whole table
        counts as changed."""
        once = self.keys.group_by(list(self.names)).aggregate([])
        if once.num_rows > KEYS_AT_MOST // 2:
            self.add_all()
        else:
            self.batches, self.count = [once.select(list(self.names))], once.num_rows


class ChangedKeys:
    """Reads a slot once, for all windows together."""

    def __init__(self, windows: Collection[Window], start: Boundary, runtime: Runtime = THREADS) -> None:
        self._windows = {window.schema.relation: window for window in windows}
        self._until = max((window.before for window in windows), default=START)
        self._read_to = start
        self._truncated = False
        self._runtime = runtime
        self._assembler: Assembler[TableName] = Assembler(self._owner, self._new_spool)
        self.found = {window.schema.table: Changed(window.key) for window in windows}

    def read(self, stream: SlotStream, stopped: Callable[[], bool]) -> None:
        """Reads the stream up to the end of the last window."""
        feedback = Feedback(self._runtime.monotonic(), stream.sender_timeout)
        while self._read_to < self._until and not stopped():
            payloads = stream.receive(min(_ASK_SECONDS, feedback.due_in(self._runtime.monotonic(), START)))
            self._take(payloads, feedback)
            now = self._runtime.monotonic()
            if feedback.flooded_for(now) is not None:
                raise PgetlError(ErrorKind.CONNECTION, "The source is shutting down.")
            if not payloads or feedback.due(now, START):
                stream.send_feedback(START, reply_requested=not payloads)
                feedback.sent(now, START)

    def _take(self, payloads: Sequence[bytes], feedback: Feedback) -> None:
        for event in self._assembler.feed_many(payloads):
            match event:
                case Keepalive():
                    feedback.heard(self._runtime.monotonic(), event)
                    if not self._assembler.in_transaction:
                        self._read_to = max(self._read_to, event.position)
                case TruncateMessage():
                    self._truncated = True
                case Commit():
                    self._read_to = max(self._read_to, event.end)
                    if self._assembler.rows or self._truncated:
                        self._note_batch()
                case _:
                    pass

    def _note_batch(self) -> None:
        """Is called at each commit that contains changes of a window, so that changes do not accumulate."""
        self._truncated = False
        batch = self._assembler.take()
        try:
            for step in batch.steps:
                self._note(step)
        finally:
            batch.steps.close()

    def _note(self, step: AssembledStep[TableName]) -> None:
        changed = self.found[step.key]
        window = self._windows[step.relation.oid]
        if not isinstance(step, Sealed) or tuple(one.name for one in step.relation.columns) != window.schema.names:
            changed.add_all()
            return
        try:
            rows = sealed_rows(window.schema, step.data, step.lengths, step.commits, step.ordinals)
            rows = rows if window.transform is None else window.transform.rows(rows)
            key = [window.schema.names.index(name) for name in window.key]
            for tuples, there in ((rows.old, rows.has_old), (rows.new, rows.has_new)):
                changed.add(_texts(tuples.columns(key).take(np.flatnonzero(there)), window.key))
        except PgetlError:  # a change that does not identify its row
            changed.add_all()

    def _owner(self, relation: int, commit_lsn: CommitLsn) -> TableName | None:
        window = self._windows.get(relation)
        return window.schema.table if window is not None and window.holds(commit_lsn) else None

    def _new_spool(self) -> Spool[TableName]:
        is_secret = any(window.transform is not None for window in self._windows.values())
        return Spool(Budget(_BUDGET_BYTES), secret=is_secret)


def _texts(tuples: Tuples, names: Sequence[str]) -> pa.Table:
    columns = [tuples.column_array(at).cast(pa.binary()) for at in range(tuples.width)]
    return pa.Table.from_arrays(columns, names=list(names))
