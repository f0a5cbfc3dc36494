"""One connection to the destination's server.

* Settings are pinned before first use (`sessions.SETTINGS`), and the destination's triggers and foreign keys
  do not fire if the role may set session_replication_role.
* Joins are nested loops over an index, because one side of a join is always a batch, and the server's estimate of its
  size is a guess: with a wrong estimate it would read the whole table. `Bulk` allows other joins where there is no
  index.
* Every error is raised as `PgetlError`, with the table of the failing statement, unless the error is transient and no
  table is its cause.
* A broken connection is discarded; the next use opens another, but never within a transaction. What is cached about
  settings, prepared statements and temporary tables belongs to one connection and is discarded with it.

Statements with values from the source go through `run`: several at once, in one round trip, each value in the form
(text or binary) in which it arrived.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import pq
from psycopg.waiting import Ready, Wait

from airflow_provider_pgetl.engine.config.secrets import describe
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError, classify
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.postgres.copy_format import copied_blocks
from airflow_provider_pgetl.engine.postgres.sessions import (
    connection_failure,
    connection_string,
    opened_session,
    pinning,
)

Row = tuple[Any, ...]

_PINNED = pinning({"client_min_messages": "warning", "enable_hashjoin": "off", "enable_mergejoin": "off"})
_ROLE = "the destination"
_PREPARED_AT_MOST = 500
_BLOCK_BYTES = 128 << 10
_GOOD = (pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)


def application_name(pipeline: str, worker: str) -> str:
    """The session's application_name, truncated to 63 bytes as the server does."""
    return f"pgetl {pipeline} {worker}".encode()[:63].decode(errors="ignore")


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with values in wire form. `table` is the table that is named in the error if the statement fails."""

    sql: str
    values: Sequence[bytes | None] = ()
    formats: Sequence[int] | None = None
    table: TableName | None = None


@dataclass(frozen=True, slots=True)
class QueryResult:
    """A statement's rows, as text, and the number of rows that it affected."""

    rows: list[tuple[str | None, ...]]
    touched: int


class Session:
    """A connection that is opened on first use. Not for use by several threads at once, except `cancel`."""

    def __init__(self, uri: str, application: str) -> None:
        self._uri = uri
        self._application = application
        self._connection: psycopg.Connection[Row] | None = None
        self._prepared: dict[str, bytes] = {}
        self._names = 0
        self._in_transaction = False
        self.replica_role = True

    # -- the connection

    @property
    def connection(self) -> psycopg.Connection[Row]:
        if self._connection is None or self._connection.closed:
            if self._in_transaction:
                raise DestinationServerError(None, "the connection was lost within a transaction", None)
            self._connection = self._open()
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def cancel(self) -> None:
        """Asks the server to cancel the statement in flight. May be called from any thread."""
        connection = self._connection
        if connection is not None and not connection.closed:
            connection.cancel_safe(timeout=5.0)

    def _open(self) -> psycopg.Connection[Row]:
        self._prepared = {}
        with self._server_errors(None):
            return opened_session(self._connect, f"{_ROLE} {describe(self._uri)}", self._pin)

    def _connect(self) -> psycopg.Connection[Row]:
        try:
            return psycopg.connect(
                connection_string(self._uri, _ROLE, self._application),
                autocommit=True,
                prepare_threshold=None,
                cursor_factory=psycopg.RawCursor,
            )
        except psycopg.Error as error:
            raise connection_failure(f"{_ROLE} {describe(self._uri)}", error) from None

    def _pin(self, connection: psycopg.Connection[Row]) -> None:
        connection.execute(_PINNED)
        try:
            connection.execute("set session_replication_role = replica")
            self.replica_role = True
        except psycopg.errors.InsufficientPrivilege:
            self.replica_role = False

    # -- statements without values from the source

    def rows(self, sql: str, parameters: Sequence[Any] = (), table: TableName | None = None) -> list[Row]:
        with self._server_errors(table):
            return self.connection.execute(sql.encode(), parameters or None).fetchall()

    def execute(self, sql: str, parameters: Sequence[Any] = (), table: TableName | None = None) -> int:
        """Runs the statement; returns the number of rows that it affected."""
        with self._server_errors(table):
            return self.connection.execute(sql.encode(), parameters or None).rowcount

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Runs the block in one transaction, which is committed at its end and rolled back on any exception."""
        with self.rolled_back_on_failure():
            self.execute("begin")
            yield
            self.execute("commit")

    @contextmanager
    def rolled_back_on_failure(self) -> Iterator[None]:
        """For a transaction that the caller begins and ends itself: any exception rolls it back, and a connection that
        is lost meanwhile is not replaced."""
        assert self.connection is not None, "what is sent within goes to this one"
        self._in_transaction = True
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        finally:
            self._in_transaction = False

    def rollback(self) -> None:
        """Ends the transaction, if there is one. A connection on which ROLLBACK fails is closed."""
        connection = self._connection
        if connection is None or connection.closed:
            return
        try:
            if connection.info.transaction_status is not pq.TransactionStatus.IDLE:
                connection.execute("rollback")
        except psycopg.Error:
            self.close()

    # -- rows

    def copy_in(self, sql: str, blocks: Iterable[bytes], table: TableName | None = None) -> int:
        """Runs COPY … FROM STDIN; returns the number of rows stored. An exception of `blocks` itself is passed on
        unchanged."""
        supply = _Supply(blocks)
        try:
            with self._server_errors(table):
                cursor = self.connection.cursor()
                with cursor.copy(sql.encode()) as copy:
                    for block in _joined(supply):
                        copy.write(block)
                return cursor.rowcount
        except PgetlError:
            if supply.failure is not None:
                raise supply.failure from None
            raise

    def insert_rows(self, sql: str, rows: Iterable[Row]) -> None:
        """Runs COPY … FROM STDIN with Python objects as values, in text format."""
        with self._server_errors(None), self.connection.cursor().copy(sql.encode()) as copy:
            for row in rows:
                copy.write_row(row)

    def copy_out(self, sql: str) -> Iterator[bytes]:
        """Runs COPY … TO STDOUT and yields pieces of whole rows. The connection is closed if the stream is not read to
        its end."""
        pgconn = self.connection.pgconn
        with self._server_errors(None):
            begun = pgconn.exec_(sql.encode())
        if begun.status != pq.ExecStatus.COPY_OUT:
            raise self._failure(begun, None)
        try:
            with self._server_errors(None):
                yield from copied_blocks(pgconn)
        except GeneratorExit:
            self.close()
            raise
        ended = pgconn.get_result()
        while pgconn.get_result() is not None:
            continue
        if ended is None or ended.status not in _GOOD:
            raise self._failure(ended or pgconn.make_empty_result(pq.ExecStatus.FATAL_ERROR), None)

    # -- statements with values from the source

    def run(self, statements: Sequence[Statement]) -> Iterator[QueryResult]:
        """Sends all statements in one round trip and yields their results in order. The first failure is raised in
        place of its result."""
        with self._server_errors(None):
            assert self.connection is not None, "names of statements are those of this connection"
            commands = [self._named(statement) for statement in statements]
            results = self._exchange(commands)
        for command, result in zip(commands, results, strict=False):
            if result.status not in _GOOD:
                raise self._failure(result, command.statement.table)
            yield _answer(result)

    def _named(self, statement: Statement) -> _Command:
        name = self._prepared.get(statement.sql)
        if name is not None:
            return _Command(statement, name, prepared=True)
        if len(self._prepared) >= _PREPARED_AT_MOST:
            self.connection.execute("deallocate all")
            self._prepared.clear()
        self._names += 1
        self._prepared[statement.sql] = b"pgetl_%d" % self._names
        return _Command(statement, self._prepared[statement.sql], prepared=False)

    def _exchange(self, commands: Sequence[_Command]) -> list[pq.abc.PGresult]:
        connection = self.connection
        pgconn = connection.pgconn
        pgconn.enter_pipeline_mode()
        try:
            for command in commands:
                command.send(pgconn)
            pgconn.pipeline_sync()
            results = connection.wait(_communicate(pgconn))
        except BaseException:
            self.close()
            raise
        pgconn.exit_pipeline_mode()
        return _one_per_command(commands, results)

    def _failure(self, result: pq.abc.PGresult, table: TableName | None) -> PgetlError:
        """Returns the error of a failed result. Discards the names of all prepared statements: after a failed exchange
        it is not known which of them the server has."""
        self._prepared.clear()
        sqlstate = _field(result, pq.DiagnosticField.SQLSTATE)
        words = _field(result, pq.DiagnosticField.MESSAGE_PRIMARY) or result.get_error_message("utf-8")
        return DestinationServerError(sqlstate, words, table)

    @contextmanager
    def _server_errors(self, table: TableName | None) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            words = error.diag.message_primary or str(error)
            if _is_depended_on(error.sqlstate, words):
                words = f"{words}: {error.diag.message_detail}"
            lost = isinstance(error, psycopg.OperationalError)
            if error.sqlstate is None and not lost:
                raise PgetlError(ErrorKind.INTERNAL, f"{words.strip().rstrip('.')}.", table=_name(table)) from error
            raise DestinationServerError(error.sqlstate, words, table) from error


@dataclass(frozen=True, slots=True)
class _Command:
    """A statement with the name under which it is, or is to be, prepared on the server."""

    statement: Statement
    name: bytes
    prepared: bool

    def send(self, pgconn: pq.abc.PGconn) -> None:
        if not self.prepared:
            pgconn.send_prepare(self.name, self.statement.sql.encode())
        pgconn.send_query_prepared(self.name, self.statement.values, self.statement.formats)


class _Supply:
    """Iterates over the blocks and records an exception that they raise, to distinguish it from errors of the
    destination's server."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = blocks
        self.failure: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._blocks
        except Exception as failure:
            self.failure = failure
            raise


def _joined(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in larger blocks, which are worth sending: the blocks given may be single rows."""
    waiting: list[bytes] = []
    size = 0
    for block in blocks:
        waiting.append(block)
        size += len(block)
        if size >= _BLOCK_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


# Recognised by the message, because the SQLSTATE is that of any malformed text. If the server's messages are in another
# language, only the remedy is missing.
_UNKNOWN_LABEL = "invalid input value for enum"
_LABEL_REMEDY = "Roll the table back: its copy brings the labels that an enum has gained at the source."


# Other objects depend on what is to be dropped or altered. The error of ALTER is recognised by its message, because its
# SQLSTATE is that of any unsupported feature.
_DEPENDED_ON = "2BP01"
_RETYPED = "cannot alter type of a column used"
_DEPENDED_ON_REMEDY = "Drop what depends on it in the destination, roll the table back, and create it again afterwards."

_REMEDIES = {
    "22021": "A text at the source is not valid in the encoding of its database: correct it there, or leave the column "
    "out with `columns`; then roll the table back.",
    "22P05": "Use a database in UTF8 as destination, or leave the column out with `columns`; then roll the table back.",
}


def _is_depended_on(sqlstate: str | None, words: str) -> bool:
    """Whether other objects depend on the object. The detail of such an error names them and is reported; that of other
    errors may quote values and is not."""
    return sqlstate == _DEPENDED_ON or words.startswith(_RETYPED)


def _remedy(sqlstate: str | None, words: str) -> str | None:
    if _is_depended_on(sqlstate, words):
        return _DEPENDED_ON_REMEDY
    return _LABEL_REMEDY if words.startswith(_UNKNOWN_LABEL) else _REMEDIES.get(sqlstate or "")


class DestinationServerError(PgetlError):
    """An error that the destination's server reported. It names the table only if it is permanent: no table is the
    cause of a transient error. `at` is the table of the statement in either case."""

    def __init__(self, sqlstate: str | None, words: str, table: TableName | None) -> None:
        kind = classify(sqlstate)
        blamed = None if kind.transient else table
        about = "The destination said" if blamed is None else f"The destination refused a write to {blamed}"
        super().__init__(kind, f"{about}: {_first_line(words)}.", remedy=_remedy(sqlstate, words), table=_name(blamed))
        self.sqlstate = sqlstate
        self.at = table


def _communicate(pgconn: pq.abc.PGconn) -> Generator[Wait, Ready | int, list[pq.abc.PGresult]]:
    """Sends what is queued while reading results, until the result of the sync arrives."""
    while pgconn.flush():
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()
    results: list[pq.abc.PGresult] = []
    while True:
        while pgconn.is_busy():
            yield Wait.R
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            if pgconn.status != pq.ConnStatus.OK:
                raise psycopg.OperationalError("the connection was lost")
            continue
        if result.status == pq.ExecStatus.PIPELINE_SYNC:
            return results
        results.append(result)


def _one_per_command(commands: Sequence[_Command], results: Sequence[pq.abc.PGresult]) -> list[pq.abc.PGresult]:
    """The result of each command's execution, or of its preparation where that failed."""
    left = iter(results)
    kept = []
    for command in commands:
        result = next(left)
        if not command.prepared:
            execution = next(left)
            result = execution if result.status in _GOOD else result
        kept.append(result)
    return kept


def _answer(result: pq.abc.PGresult) -> QueryResult:
    columns = range(result.nfields)
    rows = [tuple(_text(result.get_value(row, column)) for column in columns) for row in range(result.ntuples)]
    return QueryResult(rows, result.command_tuples or 0)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _field(result: pq.abc.PGresult, field: pq.DiagnosticField) -> str | None:
    return _text(result.error_field(field))


def _first_line(words: str) -> str:
    """The first line of the message: messages of libpq itself continue with explanations."""
    return (words.strip().splitlines() or ["no reason was given"])[0].rstrip(".")


def _name(table: TableName | None) -> str | None:
    return None if table is None else str(table)
