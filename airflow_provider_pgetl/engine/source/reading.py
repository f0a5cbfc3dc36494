"""Reading a snapshot's rows: many sessions, one moment.

Who reads a range stands in a transaction on the imported snapshot, locks the table against being rewritten, and then
looks whether its file is still the one that was planned. The catalog as seen in the snapshot still shows the old file;
the new one of a VACUUM FULL, CLUSTER, TRUNCATE or rewriting ALTER TABLE holds other rows in other places, and those of
the snapshot would silently be missing: that is `Rewritten`, and no row is read. Plain VACUUM does no harm. A TRUNCATE
that is rolled back leaves the old file.

The lock is taken here, after the slot was made, and never before: a slot's creation waits for all who are writing, and
they might wait for the lock.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import pq

from airflow_provider_pgetl.engine.copy_out import copied_blocks
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.source.connecting import Connection, result_error, server_errors
from airflow_provider_pgetl.engine.source.ranges import Range
from airflow_provider_pgetl.engine.tables import TableName


class Rewritten(PgetlError):
    """The range's leaf has another file than in the snapshot. Whether it was truncated, its file does not tell."""

    def __init__(self, table: TableName) -> None:
        message = f"{table} was rewritten after the copy's snapshot was taken."
        super().__init__(ErrorKind.TABLE_REWRITTEN, message, table=str(table))


@contextmanager
def imported_snapshot(connection: Connection, snapshot: str | None) -> Iterator[None]:
    """A read-only transaction that sees what the exporter saw; without a snapshot, one of its own."""
    with server_errors("The snapshot could not be read"):
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        if snapshot is not None:
            _import(connection, snapshot)
        yield
    finally:
        _leave(connection)


def read_range(connection: Connection, table: TableName, one: Range, query: str) -> Generator[bytes, None, int]:
    """The COPY stream of a range, in pieces of whole rows. Within `imported_snapshot`; `table` is the root, for errors.

    Read to its end, it returns the number of rows that the server counted. The lock stays until the transaction ends,
    so that nothing happens to the file before the last row is read.
    """
    lock_file(connection, table, one)
    return (yield from copy_blocks(connection, query, str(table)))


def lock_file(connection: Connection, table: TableName, one: Range) -> None:
    """Lock the range's leaf, and make sure that its rows are still in the file that was planned."""
    with server_errors(f"{one.relation} could not be locked for reading", str(table)):
        found = _lock(connection, one.relation)
    if found is None or found[0] != one.oid:
        message = f"{one.relation} was dropped, renamed or replaced after the copy's snapshot was taken."
        raise PgetlError(ErrorKind.TABLE_REWRITTEN, message, table=str(table))
    if found[1] != one.filenode:
        raise Rewritten(table)


def copy_blocks(connection: Connection, query: str, table: str | None = None) -> Generator[bytes, None, int]:
    """What COPY … TO STDOUT sends, byte for byte, in pieces of whole rows; returns the number of rows."""
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
    """The reader wants no more: tell the server, and drain what is on its way, so that the session can go on. A server
    that cannot be told has ended; the session is closed by whoever leaves its transaction."""
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
    """End the transaction. A session left in the middle of a COPY, or lost, is of no use any more: nothing was written
    in it, so there is nothing to say about that."""
    try:
        if connection.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
            connection.close()
        elif not connection.closed:
            connection.execute("ROLLBACK")
    except psycopg.Error:
        connection.close()


def _lock(connection: Connection, leaf: TableName) -> tuple[int, int] | None:
    """OID and file of the leaf, locked against being exchanged; None if no table has its name any more."""
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
