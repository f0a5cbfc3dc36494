"""Sessions on the source.

Every session, whether for statements or for replication, is pinned to `sessions.SETTINGS` *before* it is used. Errors
are raised as `PgetlError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import pq
from psycopg.rows import TupleRow

from airflow_provider_pgetl.engine.config.secrets import describe
from airflow_provider_pgetl.engine.model.errors import (
    TOO_LARGE_TO_SEND,
    ErrorKind,
    PgetlError,
    classify,
    is_too_large_to_send,
)
from airflow_provider_pgetl.engine.postgres.sessions import (
    connection_failure,
    connection_string,
    opened_session,
    pinning,
)

Connection = psycopg.Connection[TupleRow]
Row = tuple[str | None, ...]

_ROLE = "the source"
_APPLICATION_NAME_BYTES = 63


def worker_name(pipeline: str, worker: str) -> str:
    """The application_name under which administrators of the source see a pgetl session."""
    return f"pgetl {pipeline} {worker}".encode()[:_APPLICATION_NAME_BYTES].decode(errors="ignore")


def connect(uri: str, name: str, **parameters: str) -> Connection:
    """Opens a session for statements, in autocommit, with the application_name `name`. `parameters` are libpq's, and
    take precedence over those of the URI."""
    conninfo, place = connection_string(uri, _ROLE, name, **parameters), f"the source {describe(uri)}"

    def open_session() -> Connection:
        try:
            return psycopg.connect(conninfo, autocommit=True)
        except psycopg.Error as error:
            raise connection_failure(place, error) from None

    with server_errors("A session could not be set up"):
        return opened_session(open_session, place, lambda connection: connection.execute(pinning()))


def connect_replication(uri: str, name: str) -> pq.abc.PGconn:
    """Opens a session that accepts replication commands, and SQL as well, in the URI's database."""
    # Not PGconn.connect, which holds the interpreter's lock: every other stream would be blocked meanwhile. Nor
    # psycopg's generator, which gives up at the first of several hosts that does not answer.
    try:
        pgconn = _Opening.connect(connection_string(uri, _ROLE, name, replication="database"), autocommit=True).pgconn
    except psycopg.Error as error:
        raise connection_failure(f"the source {describe(uri)}", error) from None
    pgconn.nonblocking = 0
    try:
        command(pgconn, pinning().decode(), "A replication session could not be set up")
    except PgetlError:
        pgconn.finish()
        raise
    return pgconn


class _Opening(psycopg.Connection[TupleRow]):
    """Opens a connection whose PGconn is kept, and closed, by the caller."""

    def __del__(self, __warn: object = None) -> None:
        """Suppresses psycopg's warning about a connection that was not closed."""


def command(pgconn: pq.abc.PGconn, text: str, complaint: str) -> list[Row]:
    """Runs one replication command or SQL statement on a replication session; returns its rows, as text."""
    return rows_of(pgconn.exec_(text.encode()), complaint)


def rows_of(result: pq.abc.PGresult, complaint: str) -> list[Row]:
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise result_error(result, complaint)
    return [
        tuple(_text(result.get_value(row, column)) for column in range(result.nfields)) for row in range(result.ntuples)
    ]


def result_error(result: pq.abc.PGresult, complaint: str) -> PgetlError:
    sqlstate = _text(result.error_field(pq.DiagnosticField.SQLSTATE))
    primary = _text(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)) or result.get_error_message()
    return statement_error(sqlstate, primary, complaint)


def statement_error(sqlstate: str | None, words: str, complaint: str, table: str | None = None) -> PgetlError:
    """The error that a server reported for a statement; `complaint` says what the statement was to do."""
    kind = classify(sqlstate)
    if is_too_large_to_send(words):
        return PgetlError(ErrorKind.VALUE, f"{complaint}: {words.strip()}.", remedy=TOO_LARGE_TO_SEND, table=table)
    remedy = "Grant what is missing to the role of the source's URI." if kind is ErrorKind.PRIVILEGE else None
    return PgetlError(kind, f"{complaint}: {words.strip().rstrip('.')}.", remedy=remedy, table=table)


@contextmanager
def server_errors(complaint: str, table: str | None = None) -> Iterator[None]:
    """Turns psycopg's exceptions into errors that say what was being done, and to which table."""
    try:
        yield
    except psycopg.Error as error:
        words = error.diag.message_primary or str(error)
        raise statement_error(error.sqlstate, words, complaint, table) from error


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
