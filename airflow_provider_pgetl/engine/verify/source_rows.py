"""The source's rows as of an exported snapshot, read part by part without disturbing the source.

A part is a range of blocks, as a copy reads it, or the rows of some keys. Nothing but ACCESS SHARE is locked, and that
no longer than the part is read: a savepoint gives the lock back, and with it `statement_timeout`. Rows come no faster
than a declared rate.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from psycopg import pq

from airflow_provider_pgetl.engine.copy_out import CSV_OPTIONS, among, text_tables
from airflow_provider_pgetl.engine.destinations.protocol import Part
from airflow_provider_pgetl.engine.source.catalog import PublishedTable
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.source.ranges import plan_ranges, range_query
from airflow_provider_pgetl.engine.source.reading import copy_blocks, lock_file

RANGE_BYTES = 64 << 20
RANGE_SECONDS = 600
_SLOW_RANGE_BYTES = 4 << 20
_SLOW_BATCH_BYTES = 256 << 10
_LEAST_ROW_BYTES = 28
_KEYS_AT_ONCE = 500


class Rate:
    """So many rows a second on average, counted from the first; None as fast as it goes. For one thread."""

    def __init__(self, rows_per_second: float | None) -> None:
        self.rows_per_second = rows_per_second
        self._begun: float | None = None
        self._rows = 0

    def keep(self, rows: int) -> None:
        """To be called when so many more rows have come."""
        if self.rows_per_second is None:
            return
        now = time.monotonic()
        self._begun = now if self._begun is None else self._begun
        self._rows += rows
        time.sleep(max(0.0, self._begun + self._rows / self.rows_per_second - now))


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table in the snapshot that the connection's transaction has imported."""

    connection: Connection
    published: PublishedTable
    rate: Rate

    def parts(self, keys: pa.Table | None = None) -> Sequence[Part]:
        """As `TableSnapshot.parts`."""
        schema = self.published.schema
        named = {column.name: column for column in schema.columns}
        if keys is not None and schema.key and all(named[name].type.root.built_in for name in schema.key):
            starts = range(0, keys.num_rows, _KEYS_AT_ONCE)
            return [self._keys_part(keys.slice(start, _KEYS_AT_ONCE)) for start in starts]
        size = RANGE_BYTES if self.rate.rows_per_second is None else _SLOW_RANGE_BYTES
        ranges = plan_ranges(self.published.leaves, size)
        queries = [range_query(schema, one, "csv", row_filter=self.published.row_filter) for one in ranges]
        return [self._part([one.relation.sql], query, one.size) for one, query in zip(ranges, queries, strict=True)]

    def _keys_part(self, keys: pa.Table) -> Part:
        schema, leaves = self.published.schema, self.published.leaves
        named = {column.name: column for column in schema.columns}
        key = [named[name] for name in schema.key]
        conditions = [among([one.sql for one in key], [one.sql_type for one in key], keys)]
        if self.published.row_filter is not None:
            conditions.append(f"({self.published.row_filter})")
        only = "ONLY " if [leaf.name for leaf in leaves] == [schema.table] else ""
        columns = ", ".join(column.sql for column in schema.columns)
        rows = f"SELECT {columns} FROM {only}{schema.table.sql} WHERE {' AND '.join(conditions)}"
        return self._part([leaf.name.sql for leaf in leaves], f"COPY ({rows}) TO STDOUT ({CSV_OPTIONS})", 0)

    def _part(self, relations: Sequence[str], query: str, size: int) -> Part:
        return lambda: self._read(relations, query, size)

    def _read(self, relations: Sequence[str], query: str, size: int) -> Iterator[pa.Table]:
        rate, schema = self.rate, self.published.schema
        batch_bytes = {} if rate.rows_per_second is None else {"size": _SLOW_BATCH_BYTES}
        with _bounded(self.connection, self._seconds(size)):
            self._lock(relations)
            blocks = copy_blocks(self.connection, query, str(schema.table))
            for table in text_tables(schema.names, blocks, **batch_bytes):
                yield table
                rate.keep(table.num_rows)

    def _seconds(self, size: int) -> float:
        rows_per_second = self.rate.rows_per_second
        slow = 0.0 if rows_per_second is None else 2 * size / _LEAST_ROW_BYTES / rows_per_second
        return max(RANGE_SECONDS, slow)

    def _lock(self, relations: Sequence[str]) -> None:
        for one in plan_ranges(self.published.leaves, 1 << 60):  # one of each file
            if one.relation.sql in relations:
                lock_file(self.connection, self.published.table, one)


@contextmanager
def _bounded(connection: Connection, seconds: float) -> Iterator[None]:
    """What is locked and set within is given back; a statement that takes longer fails."""
    with server_errors("The source could not be read"):
        connection.execute("SAVEPOINT part")
        connection.execute(f"SET LOCAL statement_timeout = {round(seconds * 1000)}".encode())
    try:
        yield
    finally:
        status = connection.pgconn.transaction_status
        if status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
            connection.execute("ROLLBACK TO SAVEPOINT part")
