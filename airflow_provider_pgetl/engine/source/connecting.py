"""Sessions on the source, all of one kind.

Every session, whether for statements or for replication, is pinned to `session_settings` *before* it is used.

TLS and every other connection parameter pass through from the URI; a token (`tokens`) is made anew for each session.
Errors come out as `PgetlError`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

from airflow_provider_pgetl.engine.config.secrets import READABLE, describe
from airflow_provider_pgetl.engine.config.tokens import Address
from airflow_provider_pgetl.engine.model.errors import (
    TOO_LARGE_TO_SEND,
    ErrorKind,
    PgetlError,
    classify,
    is_too_large_to_send,
)
from airflow_provider_pgetl.engine.postgres.sessions import (
    connection_failure,
    expect_own_session,
    of_the_primary,
    pinning,
)

Connection = psycopg.Connection[TupleRow]
Row = tuple[str | None, ...]

# Found dead within a minute, though nothing is sent: an idle stream and the exporter of a snapshot both just wait.
_DEFAULTS: Mapping[str, str] = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "20",
    "keepalives_interval": "10",
    "keepalives_count": "4",
}

_APPLICATION_NAME_BYTES = 63


def worker_name(pipeline: str, worker: str) -> str:
    """The application_name under which the source's people see one of our sessions."""
    return f"pgetl {pipeline} {worker}".encode()[:_APPLICATION_NAME_BYTES].decode(errors="ignore")


def connect(uri: str, name: str, **parameters: str) -> Connection:
    """A session for statements, in autocommit, known on the server as `name`. `parameters` are libpq's, and go before
    those of the URI."""
    conninfo, place = _conninfo(uri, name, **parameters), f"the source {describe(uri)}"

    def open_session() -> Connection:
        try:
            return psycopg.connect(conninfo, autocommit=True)
        except psycopg.Error as error:
            raise connection_failure(place, error) from None

    connection = open_session()
    try:
        with server_errors("A session could not be set up"):
            expect_own_session(connection, open_session, place)
            connection.execute(pinning())
    except PgetlError:
        connection.close()
        raise
    return connection


def connect_replication(uri: str, name: str) -> pq.abc.PGconn:
    """A session that speaks the replication protocol to the URI's database, and SQL as well."""
    # Not PGconn.connect, which keeps the interpreter's lock: every other stream would stand still meanwhile. Nor
    # psycopg's generator, which gives up at the first of several hosts that says nothing.
    try:
        pgconn = _Opening.connect(_conninfo(uri, name, replication="database"), autocommit=True).pgconn
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
    """Opens a connection, of which the PGconn is kept and closed by others."""

    def __del__(self, __warn: object = None) -> None:
        """Nothing that was left open is to be warned of."""


def command(pgconn: pq.abc.PGconn, text: str, complaint: str) -> list[Row]:
    """Run one command of either language on a replication session; its rows, as text."""
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
    """What a server answered to a statement of ours; `complaint` says what it was to do."""
    kind = classify(sqlstate)
    if is_too_large_to_send(words):
        return PgetlError(ErrorKind.VALUE, f"{complaint}: {words.strip()}.", remedy=TOO_LARGE_TO_SEND, table=table)
    remedy = "Grant what is missing to the role of the source's URI." if kind is ErrorKind.PRIVILEGE else None
    return PgetlError(kind, f"{complaint}: {words.strip().rstrip('.')}.", remedy=remedy, table=table)


@contextmanager
def server_errors(complaint: str, table: str | None = None) -> Iterator[None]:
    """Turn what psycopg raises into errors that say what was being done, and to which table."""
    try:
        yield
    except psycopg.Error as error:
        words = error.diag.message_primary or str(error)
        raise statement_error(error.sqlstate, words, complaint, table) from error


def _conninfo(uri: str, name: str, **extra: str) -> str:
    """The URI with our defaults below it and our names above it."""
    try:
        given = of_the_primary(Address.read(uri).parameters())
    except psycopg.Error:
        # The cause is cut off: libpq's sentence quotes what it could not read, which may be a password.
        raise PgetlError(ErrorKind.CONFIG, "The source's URI cannot be read.", remedy=READABLE) from None
    defaults = dict(_DEFAULTS)
    if "PGCONNECT_TIMEOUT" in os.environ:
        del defaults["connect_timeout"]
    return make_conninfo("", **{**defaults, **given, "application_name": name, "client_encoding": "UTF8", **extra})


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
