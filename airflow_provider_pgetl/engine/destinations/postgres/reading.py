"""Reads tables as one transaction sees them, part by part, for a comparison with the source.

One repeatable-read transaction sees all tables together with their positions. It holds no lock between parts, so that a
session that needs a conflicting lock waits for one part at most. Each part locks its file again and checks that the
rows which the transaction sees are still in it: after a TRUNCATE, or when another copy has been published, they are
not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.postgres import metadata
from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.destinations.postgres.types import Field, PostgresShape, describe
from airflow_provider_pgetl.engine.destinations.protocol import Part, TableSnapshot
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.postgres.copy_format import CSV_OPTIONS, SUMS, among, sums_query, text_tables

_PART_BYTES = 64 << 20
_KEYS_AT_ONCE = 500


@contextmanager
def snapshots(
    session: Session, pipeline: str, schemas: Collection[TableSchema]
) -> Iterator[Mapping[TableName, TableSnapshot | PgetlError]]:
    if not metadata.present(session):
        yield {schema.table: fencing.dropped(schema.table) for schema in schemas}
        return
    with session.rolled_back_on_failure():
        session.execute("begin isolation level repeatable read read only")
        records = metadata.records(session, pipeline)
        positions = {table: record.position for table, record in records.items()}
        yield {schema.table: _snapshot(session, schema, positions.get(schema.table)) for schema in schemas}
        session.rollback()


def _snapshot(session: Session, schema: TableSchema, position: Boundary | None) -> TableSnapshot | PgetlError:
    if position is None:
        return fencing.dropped(schema.table)
    try:
        return PostgresSnapshot(session, position, describe(session, schema), _files(session, schema.table))
    except PgetlError as error:
        if error.kind is not ErrorKind.SCHEMA:
            raise
        return error


@dataclass(frozen=True, slots=True)
class _File:
    """A table that has rows itself, with the file that holds them: its number, and its size in blocks and in bytes."""

    table: TableName
    oid: int
    filenode: int
    blocks: int
    size: int


@dataclass(frozen=True, slots=True)
class PostgresSnapshot:
    """One table as the session's transaction sees it."""

    session: Session
    position: Boundary
    shape: PostgresShape
    files: Sequence[_File]

    def held(self, texts: pa.Table) -> pa.Table:
        there = set(texts.column_names)
        return texts.select([name for name in self._names if name in there])

    @property
    def _names(self) -> list[str]:
        return [field.column.name for field in self.shape.fields]

    def parts(self, keys: pa.Table | None = None) -> Sequence[Part]:
        key = self.shape.key
        found = keys is not None and key and all(field.column.type.root.built_in for field in key)
        columns = ", ".join(map(_as_source, self.shape.fields))
        return [
            self._part(files, f"copy (select {columns} {source}) to stdout ({CSV_OPTIONS})", self._names)
            for files, source in self._sources(keys if found else None)
        ]

    def sums(self, names: Sequence[str], keys: pa.Table | None = None) -> Sequence[Part]:
        fields = {field.column.name: field for field in self.shape.fields}
        values = [_as_source(fields[name]) for name in names]
        return [self._part(files, sums_query(values, source), SUMS) for files, source in self._sources(keys)]

    def _sources(self, keys: pa.Table | None) -> Iterator[tuple[Sequence[_File], str]]:
        """Yields the files and the FROM clauses of the parts: of all rows, or of the rows of these keys."""
        if keys is None:
            for file in self.files:
                for first, last in _ranges(file):
                    end = "" if last is None else f" and ctid < '({last},0)'::tid"
                    yield [file], f"from only {file.table.sql} where ctid >= '({first},0)'::tid{end}"
            return
        columns = [field.sql for field in self.shape.key]
        types = [field.destination.type for field in self.shape.key]
        for start in range(0, keys.num_rows, _KEYS_AT_ONCE):
            some = keys.slice(start, _KEYS_AT_ONCE)
            yield self.files, f"from {self.shape.sql} where {among(columns, types, some)}"

    def _part(self, files: Sequence[_File], query: str, names: Sequence[str]) -> Part:
        return lambda: self._read(files, query, names)

    def _read(self, files: Sequence[_File], query: str, names: Sequence[str]) -> Iterator[pa.Table]:
        self.session.execute("savepoint part")
        for file in files:
            self._lock(file)
        try:
            yield from text_tables(names, self.session.copy_out(query))
        except PgetlError as error:
            if not error.transient:  # else there is no session any more
                self.session.execute("rollback to savepoint part; release savepoint part")
            raise
        self.session.execute("rollback to savepoint part; release savepoint part")

    def _lock(self, file: _File) -> None:
        try:
            self.session.execute(f"lock table only {file.table.sql} in access share mode")
            found = self.session.rows(_FILE_NOW, (file.table.sql,))
        except PgetlError as error:
            if error.kind is not ErrorKind.SCHEMA:
                raise
            found = []
        if found != [(file.oid, file.filenode)]:
            self.session.execute("rollback to savepoint part; release savepoint part")
            message = f"{file.table} was truncated or exchanged in the destination while it was read."
            raise PgetlError(ErrorKind.TABLE_REWRITTEN, message, table=str(self.shape.table))


def _as_source(field: Field) -> str:
    """The column, cast to the source's type if that is a built-in one: texts of other types differ for the same
    value."""
    root = field.column.type.root
    return field.sql if field.same_type or not root.built_in else f"{field.sql}::{root.name}"


def _ranges(file: _File) -> Iterator[tuple[int, int | None]]:
    pieces = max(1, min(file.blocks, round(file.size / _PART_BYTES)))
    edges = [file.blocks * piece // pieces for piece in range(pieces)]
    yield from zip(edges, [*edges[1:], None], strict=True)


def _files(session: Session, table: TableName) -> list[_File]:
    return [_File(TableName(*row[:2]), *row[2:]) for row in session.rows(_FILES, (table.sql,))]


# pg_class is read as the transaction sees it; sizes are the present ones.
_FILES = """
select n.nspname::text, c.relname::text, c.oid::int8, c.relfilenode::int8,
       coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::int8, coalesce(pg_relation_size(c.oid), 0)
from pg_class c join pg_namespace n on n.oid = c.relnamespace
where c.oid = to_regclass($1) and c.relkind <> 'p'
   or c.oid = any (array(select relid::oid from pg_partition_tree(to_regclass($1)) where isleaf))
order by 1, 2
"""
_FILE_NOW = "select c::oid::int8, pg_relation_filenode(c)::int8 from to_regclass($1) c"
