"""A replication connection from START_REPLICATION to its end: it receives payloads and sends feedback.

This module does not decode payloads, decide when feedback is due, or open a connection. One thread uses a stream;
other threads may only call `wake`.

Invariants
* Feedback never blocks: what the socket does not accept waits inside libpq and is sent with the next `receive` or
  feedback. Meanwhile the server's data is still read, so that two full sockets cannot wait for each other.
* The position confirmed to the server never decreases.
* Payloads that arrived before the stream ended are returned before the end is raised. But once the server has warned
  that it leaves changes out, no more payloads are returned.
* Every failure is a `PgetlError`.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from psycopg import OperationalError, pq

from airflow_provider_pgetl.engine.model.errors import (
    REFUSED_BY_SOURCE,
    TOO_LARGE_TO_SEND,
    ErrorKind,
    PgetlError,
    classify,
    is_too_large_to_send,
)
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.postgres import recoding
from airflow_provider_pgetl.engine.wal import pgoutput

# -- Why a stream did not start, or ended: from the server's answer to a `PgetlError` of the right kind. ---------------
#
# A kind follows from the SQLSTATE and from when it came, never from the text of a message, which may be in any
# language.

_UNDEFINED_OBJECT = "42704"
_OBJECT_IN_USE = "55006"
_NOT_IN_PREREQUISITE_STATE = "55000"
_INSUFFICIENT_PRIVILEGE = "42501"


def field(result: pq.abc.PGresult, name: pq.DiagnosticField) -> str | None:
    value = result.error_field(name)
    return value.decode(errors="replace") if value is not None else None


def sqlstate(result: pq.abc.PGresult) -> str | None:
    return field(result, pq.DiagnosticField.SQLSTATE)


def _said(result: pq.abc.PGresult) -> str:
    parts = (field(result, pq.DiagnosticField.MESSAGE_PRIMARY), field(result, pq.DiagnosticField.MESSAGE_DETAIL))
    # Errors raised by libpq itself have no fields.
    words = " ".join(f"{part.strip().rstrip('.')}." for part in parts if part)
    return words or f"{result.error_message.decode(errors='replace').strip().rstrip('.')}."


def not_started(slot: str, result: pq.abc.PGresult, known: tuple[bool, str | None, str | None] | None) -> PgetlError:
    """Returns the error for a refused START_REPLICATION. `known` is the slot as the server has it, None if it does not
    exist: whether it belongs to this database, its plugin, its WAL status."""
    state, said = sqlstate(result), _said(result)
    if state == _OBJECT_IN_USE:
        return PgetlError(ErrorKind.SLOT_IN_USE, f"The slot {slot} is in use. The server said: {said}")
    wrong = _wrong_with_slot(known)
    if wrong and state != _INSUFFICIENT_PRIVILEGE:
        return PgetlError(ErrorKind.SLOT_LOST, f"The replication slot {slot} {wrong}.")
    kind = ErrorKind.PREFLIGHT if state == _NOT_IN_PREREQUISITE_STATE else classify(state)
    return PgetlError(kind, f"The slot {slot} could not be streamed from. The server said: {said}")


def _wrong_with_slot(known: tuple[bool, str | None, str | None] | None) -> str | None:
    if known is None:
        return "does not exist"
    of_this_database, plugin, wal_status = known
    if plugin != "pgoutput" or not of_this_database:
        return "is not ours: it was made for another database or plugin"
    return "was invalidated: the WAL that it needs is gone" if wal_status == "lost" else None


def ended(slot: str, publications: tuple[str, ...], result: pq.abc.PGresult | None) -> PgetlError:
    """Returns the error for a stream that ended. A `result` without an error means that the server ended the stream in
    an orderly way, as it does when it shuts down."""
    if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
        return PgetlError(ErrorKind.CONNECTION, f"The server ended the stream of slot {slot}; it is shutting down.")
    state, said = sqlstate(result), _said(result)
    if state == _UNDEFINED_OBJECT:
        return publication_missing(slot, publications, said)
    message = f"The stream of slot {slot} ended. The server said: {said}"
    if is_too_large_to_send(said):
        return PgetlError(ErrorKind.PREFLIGHT, message, remedy=TOO_LARGE_TO_SEND)
    if classify(state) is ErrorKind.VALUE:  # a value error of the source itself: no destination has seen it
        return PgetlError(ErrorKind.PREFLIGHT, message, remedy=REFUSED_BY_SOURCE)
    return PgetlError(classify(state), message)


class PublicationMissing(PgetlError):
    """A publication did not exist when the change being decoded was made. The slot can never advance beyond that
    change, even if the publication has been created again since."""


def publication_missing(slot: str, publications: tuple[str, ...], said: str) -> PublicationMissing:
    """Returns the error for changes made while the publication did not exist: this stream has lost them."""
    names = " or ".join(publications)
    message = f"The slot {slot} has come to changes made while the publication {names} did not exist."
    return PublicationMissing(ErrorKind.SLOT_LOST, f"{message} They are lost to it. The server said: {said}")


def skipped_publication(slot: str, publications: tuple[str, ...], notice: pq.abc.PGresult) -> PgetlError | None:
    """Returns the error for a warning about a missing publication, None for any other notice. From version 18 on the
    server only warns of it, and leaves out the changes."""
    warning = field(notice, pq.DiagnosticField.SEVERITY_NONLOCALIZED) == "WARNING"
    if not warning or sqlstate(notice) != _NOT_IN_PREREQUISITE_STATE:
        return None
    return publication_missing(slot, publications, _said(notice))


def broken(slot: str, error: Exception) -> PgetlError:
    """Returns the error for a connection that failed, on either side."""
    said = str(error).strip().splitlines()
    return PgetlError(
        ErrorKind.CONNECTION, f"The connection of slot {slot} broke: {said[0] if said else 'no reason given'}."
    )


# -- Stream. -----------------------------------------------------------------------------------------------------------

RECEIVE_BYTES = 1 << 20
CLOSE_SECONDS = 2.0
_SKIPS_EMPTY = 150000

# The TLS library may hold back the end of a record, in which case the socket does not become readable. That end is
# small where libpq did not yet know the size of the message that it belongs to, and one more read fetches it.
_READS_OVER_TLS = 2


class ReplicationStream:
    """The stream of one slot. It owns the connection that it is given, and closes it in `close`."""

    def __init__(self, connection: pq.abc.PGconn, slot: str, publications: tuple[str, ...]) -> None:
        """Only `start` calls this."""
        self._connection = connection
        self._slot = slot
        self._publications = publications
        self._confirmed = START
        self._unflushed = False
        self._ended = False
        self._closed = False
        self._failure: PgetlError | None = None
        self._reads = _READS_OVER_TLS if connection.ssl_in_use or connection.used_gssapi else 1
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wake_lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self.sender_timeout: float | None = None
        self.described_since: Boundary | None = None
        """What is committed after this position comes with descriptions of the tables that it alters; None: nothing."""
        self.sends_empty = connection.server_version < _SKIPS_EMPTY
        """Whether transactions are sent of which nothing is published."""
        self._recode: Callable[[bytes], bytes] | None = None

    @classmethod
    def start(
        cls,
        connection: pq.abc.PGconn,
        slot: str,
        publications: tuple[str, ...],
        *,
        start: Boundary = START,
        binary: bool = False,
        described_since: Boundary | None = None,
    ) -> Self:
        """Starts streaming on a connection made with ``replication=database`` and client encoding UTF8. Payloads are
        returned in UTF8. Values are sent in binary only if `binary` is set and the database itself is in UTF8. Logical
        messages are sent if `described_since` is not None.

        A `start` of 0/0 means the slot's confirmed position.
        """
        stream = cls(connection, slot, publications)
        stream.described_since = described_since
        try:
            with stream._connection_errors():
                stream._start(start, binary=binary)
        except PgetlError:
            stream.close()
            raise
        return stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- receiving ----------------------------------------------------------------------------------------------------

    def receive(self, timeout: float) -> list[bytes]:
        """Returns the payloads that have arrived, at most about `RECEIVE_BYTES`; if there are none, those that arrive
        within `timeout` seconds.

        May return an empty list early: after a `wake`, or when only a part of a message has arrived.
        """
        self._expect_open()
        with self._connection_errors():
            payloads = self._drain()
            if not payloads and not self._ended:
                self._wait(timeout)
                payloads = self._drain()
        self._expect_unbroken(payloads)
        return payloads if self._recode is None else list(map(self._recode, payloads))

    def wake(self) -> None:
        """Makes the current or the next `receive` return at once. Any thread may call it at any time."""
        with self._wake_lock:
            if not self._closed:
                os.eventfd_write(self._wake, 1)

    def _drain(self) -> list[bytes]:
        get, consume = self._connection.get_copy_data, self._connection.consume_input
        payloads: list[bytes] = []
        size = reads = 0
        while size < RECEIVE_BYTES and not self._ended:
            length, data = get(1)
            if length > 0:
                payloads.append(bytes(data))
                size += length
                reads = 0
            elif length < 0:
                self._ended = True
            elif reads < self._reads:
                consume()
                reads += 1
            else:
                break
        return payloads

    def _wait(self, timeout: float) -> None:
        """Waits until the server sends data or accepts unsent feedback, `wake` is called, or `timeout` seconds have
        passed."""
        events = select.POLLIN | (select.POLLOUT if self._unflushed else 0)
        self._poll.register(self._connection.socket, events)
        ready = self._poll.poll(max(0.0, timeout) * 1000)
        if any(descriptor == self._wake for descriptor, _ in ready):
            os.eventfd_read(self._wake)
        if self._unflushed:
            self._flush()

    def _expect_unbroken(self, payloads: list[bytes]) -> None:
        if self._ended and not payloads and self._failure is None:
            with self._connection_errors():
                result = self._connection.get_result()
            self._failure = ended(self._slot, self._publications, result)
        if self._failure is not None:
            raise self._failure

    # -- sending ------------------------------------------------------------------------------------------------------

    @property
    def confirmed(self) -> Boundary:
        """The boundary last sent as feedback."""
        return self._confirmed

    def send_feedback(self, boundary: Boundary, *, reply_requested: bool = False) -> None:
        """Confirms that everything before `boundary` is durable: the server may remove its WAL."""
        self._expect_open()
        if boundary < self._confirmed:
            pair = f"{boundary} after {self._confirmed}"
            raise PgetlError(ErrorKind.INTERNAL, f"Feedback of slot {self._slot} would go back: {pair}.")
        self._confirmed = boundary
        status = pgoutput.standby_status(boundary, reply_requested=reply_requested, unix_time=time.time())
        with self._connection_errors():
            self._connection.put_copy_data(status)
            self._flush()

    def _flush(self) -> None:
        self._unflushed = self._connection.flush() == 1

    # -- beginning and end --------------------------------------------------------------------------------------------

    def _start(self, start: Boundary, *, binary: bool) -> None:
        self._connection.notice_handler = self._hear
        encoding = self._connection.parameter_status(b"client_encoding")
        if encoding != b"UTF8":
            raise PgetlError(ErrorKind.INTERNAL, f"A replication connection was opened in the encoding {encoding!r}.")
        self._query(pgoutput.HEAR_WARNINGS)
        self.sender_timeout = int(self._query(pgoutput.SENDER_TIMEOUT)[0][0] or 0) / 1000 or None
        codec = self._take_as_stored()
        command = pgoutput.start_replication(
            self._slot,
            self._publications,
            start,
            binary=binary and codec is None,
            messages=self.described_since is not None,
        )
        result = self._connection.exec_(command.encode(codec or "utf-8"))
        if result.status != pq.ExecStatus.COPY_BOTH:
            self._ended = True
            raise not_started(self._slot, result, self._slot_as_known())
        self._connection.nonblocking = 1

    def _take_as_stored(self) -> str | None:
        """For a database that is not in UTF8, sets the client encoding to that of the database (see `recoding`).
        Returns the codec of everything sent from then on, None for UTF8 and for encodings that the server converts."""
        encoding = (self._connection.parameter_status(b"server_encoding") or b"UTF8").decode()
        codec = recoding.CODECS.get(encoding)
        if codec is not None:
            self._query(f"set client_encoding = '{encoding}'")
            self._recode = recoding.recoder(codec)
        return codec

    def _slot_as_known(self) -> tuple[bool, str | None, str | None] | None:
        for of_this_database, plugin, wal_status in self._query(pgoutput.slot_query(self._slot)):
            return of_this_database == "t", plugin, wal_status
        return None

    def _query(self, statement: str) -> list[list[str | None]]:
        result = self._connection.exec_(statement.encode())
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise ended(self._slot, self._publications, result)
        return [
            [_text(result.get_value(row, column)) for column in range(result.nfields)] for row in range(result.ntuples)
        ]

    def _hear(self, notice: pq.abc.PGresult) -> None:
        self._failure = self._failure or skipped_publication(self._slot, self._publications, notice)

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Ends the stream in an orderly way if the server answers within `timeout` seconds; closes the connection in
        any case.

        After an orderly end the slot is free when this returns. A server that is sending a large transaction does not
        answer; it notices the closed connection a little later.
        """
        if self._closed:
            return
        with self._wake_lock:
            self._closed = True
        # A connection that is already broken needs no orderly end.
        with suppress(OperationalError):
            self._end_copy(time.monotonic() + timeout)
        self._connection.finish()
        os.close(self._wake)

    def _end_copy(self, deadline: float) -> None:
        if self._ended or self._connection.transaction_status != pq.TransactionStatus.ACTIVE:
            return
        self._connection.put_copy_end()
        self._flush()
        self._drain_until(deadline)
        self._await_results(deadline)

    def _drain_until(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            payloads = self._drain()
            if self._ended:
                return
            if not payloads:
                self._wait(deadline - time.monotonic())

    def _await_results(self, deadline: float) -> None:
        """Waits until the server has reported the command as complete; the slot is free then."""
        while time.monotonic() < deadline:
            self._connection.consume_input()
            if self._connection.is_busy():
                self._wait(deadline - time.monotonic())
            elif self._connection.get_result() is None:
                return

    def _expect_open(self) -> None:
        if self._closed:
            raise PgetlError(ErrorKind.INTERNAL, f"The stream of slot {self._slot} was used after its end.")

    @contextmanager
    def _connection_errors(self) -> Iterator[None]:
        try:
            yield
        except OperationalError as error:
            raise broken(self._slot, error) from error


def _text(value: bytes | None) -> str | None:
    return value.decode() if value is not None else None
