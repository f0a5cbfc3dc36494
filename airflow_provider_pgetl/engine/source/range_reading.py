"""Reads the rows of a snapshot, over many sessions.

A session that reads a range opens a transaction on the imported snapshot, locks the table against being rewritten, and
then checks whether its file is still the one that was planned. The catalog as seen in the snapshot still shows the old
file; the new one of a VACUUM FULL, CLUSTER, TRUNCATE or rewriting ALTER TABLE holds other rows in other places, and
those of the snapshot would silently be missing: then `Rewritten` is raised, and no row is read. Plain VACUUM does no
harm. A TRUNCATE that is rolled back leaves the old file.

The lock is taken here, after the slot was created, and never before: a slot's creation waits for all transactions that
are writing, and they might wait for the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Literal

import psycopg
from psycopg import pq

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import Column, TableName, TableSchema
from airflow_provider_pgetl.engine.postgres.copy_format import copied_blocks
from airflow_provider_pgetl.engine.source.catalog import PublishedTable, read_tables
from airflow_provider_pgetl.engine.source.connecting import (
    Connection,
    connect,
    connect_replication,
    result_error,
    server_errors,
    worker_name,
)
from airflow_provider_pgetl.engine.source.relations import Leaf
from airflow_provider_pgetl.engine.source.slots import CreatedSlot, create_slot, drop_slot

# -- Division of a table into ranges that can be copied in parallel. Pure. ---------------------------------------------
#
# A range is a run of heap blocks of one leaf. Ranges are cut by bytes, TOAST included, from the file's real size, which
# costs nothing to determine. The last range of each leaf is open: the file may have grown since it was measured. Each
# row of the snapshot is in exactly one range in any case, as long as the file stays the same one. Therefore a range
# contains the leaf's OID and its file's number, which are checked when it is read. The largest leaves come first, so
# that a large one does not begin last.

CopyFormat = Literal["binary", "text", "csv"]

_OPTIONS: Mapping[CopyFormat, str] = {
    "binary": "FORMAT binary",
    "text": "FORMAT text",
    "csv": "FORMAT csv, FORCE_QUOTE *",
}


@dataclass(frozen=True, slots=True)
class Range:
    """Blocks `first_block` to `last_block`, both included, of the leaf `relation`; to the file's end if `last_block` is
    None.

    Numbers are unique within one plan for one table. `size` is an estimate, for progress.
    """

    number: int
    relation: TableName
    oid: int
    filenode: int
    first_block: int
    last_block: int | None
    size: int = 0


def plan_ranges(leaves: Sequence[Leaf], range_bytes: int) -> tuple[Range, ...]:
    """Ranges of about `range_bytes` that together contain every row of the leaves once. An empty leaf has one range,
    too."""
    numbers = count()
    by_size = sorted(leaves, key=lambda leaf: (-leaf.size, leaf.name))
    return tuple(one for leaf in by_size for one in _cut(leaf, range_bytes, numbers))


def range_query(
    schema: TableSchema,
    one: Range,
    copy_format: CopyFormat,
    *,
    row_filter: str | None = None,
) -> str:
    """The COPY that sends the range's rows: the published columns, in their order, where the row filter holds.

    In binary, columns whose type has no binary form are sent as their text, as pgoutput sends them. In text and CSV all
    columns are text anyway. CSV quotes every value, so that NULL (nothing) differs from an empty one.
    """
    binary = copy_format == "binary"
    columns = ", ".join(
        _as_text(column) if binary and not column.type.sendable else column.sql for column in schema.columns
    )
    return f"COPY (SELECT {columns} {range_source(one, row_filter)}) TO STDOUT ({_OPTIONS[copy_format]})"


def range_source(one: Range, row_filter: str | None = None) -> str:
    """Returns the FROM clause, with its conditions, of the range's rows."""
    return f"FROM ONLY {one.relation.sql} WHERE {' AND '.join(_conditions(one, row_filter))}"


def _cut(leaf: Leaf, range_bytes: int, numbers: Iterator[int]) -> Iterator[Range]:
    pieces = max(1, min(leaf.blocks, round(leaf.size / range_bytes)))
    edges = [leaf.blocks * piece // pieces for piece in range(pieces)]
    ends = [edge - 1 for edge in edges[1:]]
    for first, last in zip(edges, [*ends, None], strict=True):
        yield Range(next(numbers), leaf.name, leaf.oid, leaf.filenode, first, last, leaf.size // pieces)


def _conditions(one: Range, row_filter: str | None) -> Iterator[str]:
    yield f"ctid >= '({one.first_block},0)'::pg_catalog.tid"
    if one.last_block is not None:
        yield f"ctid < '({one.last_block + 1},0)'::pg_catalog.tid"
    if row_filter is not None:
        yield f"({row_filter})"


def _as_text(column: Column) -> str:
    """The output function's text. A cast is not the same: it returns ``true`` for ``t`` and loses a char(n)'s blanks.

    Not `CASE WHEN c IS NULL`: that is true for a composite whose fields are all NULL, which is not NULL itself.
    """
    return f"CASE WHEN pg_catalog.num_nulls({column.sql}) = 0 THEN pg_catalog.concat({column.sql}) END"


# -- Reading. ----------------------------------------------------------------------------------------------------------


class Rewritten(PgetlError):
    """The range's leaf has another file than in the snapshot. The file does not show whether the table was
    truncated."""

    def __init__(self, table: TableName) -> None:
        message = f"{table} was rewritten after the copy's snapshot was taken."
        super().__init__(ErrorKind.TABLE_REWRITTEN, message, table=str(table))


@contextmanager
def imported_snapshot(connection: Connection, snapshot: str | None) -> Iterator[None]:
    """Runs the block in a read-only transaction on the exported snapshot; without one, on a snapshot of its own."""
    with server_errors("The snapshot could not be read"):
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        if snapshot is not None:
            _import(connection, snapshot)
        yield
    finally:
        _leave(connection)


def read_range(connection: Connection, table: TableName, one: Range, query: str) -> Generator[bytes, None, int]:
    """Yields the COPY stream of a range, in pieces of whole rows. Must run within `imported_snapshot`; `table` is the
    root, for errors.

    When it is read to its end, it returns the number of rows that the server counted. The lock is held until the
    transaction ends, so that nothing happens to the file before the last row is read.
    """
    lock_file(connection, table, one)
    return (yield from copy_blocks(connection, query, str(table)))


def lock_file(connection: Connection, table: TableName, one: Range) -> None:
    """Locks the range's leaf, and raises if its rows are not in the file that was planned any more."""
    with server_errors(f"{one.relation} could not be locked for reading", str(table)):
        found = _lock(connection, one.relation)
    if found is None or found[0] != one.oid:
        message = f"{one.relation} was dropped, renamed or replaced after the copy's snapshot was taken."
        raise PgetlError(ErrorKind.TABLE_REWRITTEN, message, table=str(table))
    if found[1] != one.filenode:
        raise Rewritten(table)


def copy_blocks(connection: Connection, query: str, table: str | None = None) -> Generator[bytes, None, int]:
    """Yields the output of COPY … TO STDOUT, byte for byte, in pieces of whole rows; returns the number of rows."""
    pgconn = connection.pgconn
    complaint = f"{table or 'The query'} could not be read"
    started = pgconn.exec_(query.encode())
    if started.status != pq.ExecStatus.COPY_OUT:
        raise _about(table, result_error(started, complaint))
    try:
        with server_errors(complaint, table):
            yield from copied_blocks(pgconn)
        return _finish(pgconn, complaint, table)
    except GeneratorExit:
        _abandon(pgconn)
        raise


def _finish(pgconn: pq.abc.PGconn, complaint: str, table: str | None) -> int:
    result = pgconn.get_result()
    while pgconn.get_result() is not None:
        pass
    if result is None or result.status != pq.ExecStatus.COMMAND_OK:
        raise _about(table, result_error(result or pgconn.make_empty_result(pq.ExecStatus.FATAL_ERROR), complaint))
    return result.command_tuples or 0


def _abandon(pgconn: pq.abc.PGconn) -> None:
    """Cancels a COPY that is not read to its end, and drains what was sent, so that the session can be used again. If
    the server cannot be reached, it has ended; `imported_snapshot` closes the session."""
    if pgconn.status != pq.ConnStatus.OK:
        return
    try:
        pgconn.cancel_conn().blocking()
    except psycopg.Error:
        return
    while (result := pgconn.get_result()) is not None:
        while result.status == pq.ExecStatus.COPY_OUT and pgconn.get_copy_data(0)[0] > 0:
            pass


def _about(table: str | None, error: PgetlError) -> PgetlError:
    return PgetlError(error.kind, error.message, remedy=error.remedy, table=table)


def _leave(connection: Connection) -> None:
    """Ends the transaction. A session that is in the middle of a COPY, or lost, cannot be used any more and is closed:
    nothing was written in it, so there is nothing to report."""
    try:
        if connection.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
            connection.close()
        elif not connection.closed:
            connection.execute("ROLLBACK")
    except psycopg.Error:
        connection.close()


def _lock(connection: Connection, leaf: TableName) -> tuple[int, int] | None:
    """Locks the leaf against being exchanged; returns its OID and file, or None if no table has its name any more."""
    try:
        connection.execute(f"LOCK TABLE ONLY {leaf.sql} IN ACCESS SHARE MODE".encode())
        row = connection.execute(_FILE, [leaf.sql]).fetchone()
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        return None
    return (row[0], row[1]) if row else None


_FILE = "SELECT c::oid::int8, pg_relation_filenode(c)::int8 FROM CAST(%s AS regclass) AS c"


def _import(connection: Connection, snapshot: str) -> None:
    with server_errors("The snapshot could not be read"):
        try:
            connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'".encode())
        except (psycopg.errors.InvalidParameterValue, psycopg.errors.UndefinedObject) as error:
            message = f"The snapshot {snapshot} is gone: the session that exported it has ended."
            raise PgetlError(ErrorKind.COPY_DIED, message) from error


# -- A sync group's slot with its exported snapshot, and what is read of its tables before any row. --------------------


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """A slot with its snapshot. `release` gives the snapshot up, when no session will import it any more: until then
    the source cannot remove rows that the snapshot sees."""

    created: CreatedSlot
    release: Callable[[], None]


@contextmanager
def exported_snapshot(uri: str, pipeline: str, attempt: int, slot: str, patience: float) -> Iterator[ExportedSnapshot]:
    """Creates the slot, and keeps its session idle for as long as the snapshot is needed. The slot stays."""
    replication = connect_replication(uri, worker_name(pipeline, f"c{attempt} snapshot"))
    try:
        with closing(connect(uri, worker_name(pipeline, f"c{attempt} watcher"))) as watcher:
            created = create_slot(replication, watcher, slot, export_snapshot=True, patience=patience)
        yield ExportedSnapshot(created, replication.finish)
    finally:
        replication.finish()


def drop_group_slot(uri: str, pipeline: str, attempt: int, slot: str) -> None:
    """Drops the slot over a session of its own: those of the copy may be broken."""
    with closing(connect(uri, worker_name(pipeline, f"c{attempt} slot"))) as connection:
        drop_slot(connection, slot)


def read_published(
    uri: str,
    name: str,
    snapshot: str | None,
    publications: Sequence[str],
    tables: Sequence[TableName],
    refuse: Callable[[TableName, PgetlError], None],
) -> tuple[PublishedTable, ...]:
    """The tables as published in the snapshot. A table with an error is passed to `refuse`; the others are returned."""
    wanted = {str(table): table for table in tables}
    with closing(connect(uri, name)) as connection, imported_snapshot(connection, snapshot):
        while True:
            try:
                return read_tables(connection, publications, list(wanted.values()))
            except PgetlError as error:
                culprit = wanted.pop(error.table or "", None)
                if culprit is None:
                    raise
                refuse(culprit, error)
