"""The logical replication protocol: the messages that are not rows, their decoder, commands to a walsender, feedback.

Row messages (insert, update, delete) have no class here on purpose: they are never decoded one by one, see
`assembler`. Times are microseconds since 2000-01-01 UTC, as Postgres sends them; `timestamp` converts one.

Positions have the types of `model.positions`: a `CommitLsn` identifies a transaction; its end, and the position of a
keepalive, are each a `Boundary`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from struct import Struct

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import START, Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.tables import Identity, TableName, quote_identifier

POSTGRES_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def timestamp(microseconds: int) -> datetime:
    """Converts a time of the protocol to a datetime."""
    return POSTGRES_EPOCH + timedelta(microseconds=microseconds)


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction's changes follow. `commit_lsn` is known already: pgoutput sends committed transactions only."""

    commit_lsn: CommitLsn
    commit_time: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction is complete; everything up to and including it lies before `end`."""

    commit_lsn: CommitLsn
    end: Boundary
    commit_time: int


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A published column. `key`: whether it belongs to the replica identity."""

    name: str
    type: int
    modifier: int
    key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """The definition of a table for the rows that follow. Sent once per connection, and again after it has changed."""

    oid: int
    table: TableName
    identity: Identity
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True, slots=True)
class Type:
    """The name of a type that is not built in. Sent before the relation that uses it."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction was itself replicated from another server; `name` is its replication origin."""

    commit_lsn: CommitLsn
    name: str


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message written by `pg_logical_emit_message`. It is sent only on request."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class TruncateMessage:
    """One TRUNCATE statement; `relations` are the OIDs of the published tables that it emptied."""

    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Keepalive:
    """All published changes before `position` have been sent; a transaction that is still open commits at or after
    it."""

    position: Boundary
    server_time: int
    reply_requested: bool


Message = Begin | Commit | Relation | Type | Origin | LogicalMessage | TruncateMessage | Keepalive


# -- From a CopyData payload to a message: pure functions, strict to the byte. -----------------------------------------
#
# A payload is either a keepalive, or XLogData: 'w', three int64 (WAL start, WAL end, the server's clock), and one
# message of pgoutput. A message that is cut short, too long or unknown raises `PgetlError`; it is never an IndexError
# and never guessed at.
#
# Row messages are refused here: the `assembler` puts them into its buckets undecoded. The messages of streamed and of
# two-phase transactions are refused too: a server sends them only on request.

HEADER = 25
KIND = slice(HEADER, HEADER + 1)

_KEEPALIVE = Struct("!cQqB")
_BEGIN = Struct(f"!{HEADER + 1}xQqI")
_COMMIT = Struct(f"!{HEADER + 1}xBQQq")
_UINT8 = Struct("!B")
_INT16 = Struct("!h")
_INT32 = Struct("!i")
_UINT32 = Struct("!I")
_UINT64 = Struct("!Q")
_COLUMN_TYPE = Struct("!Ii")

_IDENTITIES: dict[int, Identity] = {
    ord("d"): "default",
    ord("i"): "index",
    ord("f"): "full",
    ord("n"): "nothing",
}
_ROWS = {b"I": "insert", b"U": "update", b"D": "delete"}
_NEVER_REQUESTED = {
    b"S": "a streamed transaction (stream start)",
    b"E": "a streamed transaction (stream stop)",
    b"c": "a streamed transaction (stream commit)",
    b"A": "a streamed transaction (stream abort)",
    b"b": "a two-phase transaction (begin prepare)",
    b"P": "a two-phase transaction (prepare)",
    b"K": "a two-phase transaction (commit prepared)",
    b"r": "a two-phase transaction (rollback prepared)",
    b"p": "a streamed two-phase transaction (stream prepare)",
}


def decode(payload: bytes) -> Message:
    """Returns the message in a CopyData payload."""
    try:
        return _decode(payload)
    except (struct.error, ValueError) as malformed:
        raise _refusal(f"a malformed message ({malformed})", payload) from malformed


def _decode(payload: bytes) -> Message:
    frame, kind = payload[:1], payload[KIND]
    if frame == b"k":
        return _keepalive(payload)
    if frame == b"w" and kind == b"B":
        return _begin(payload)
    if frame == b"w" and kind == b"C":
        return _commit(payload)
    decoder = _DECODERS.get(kind) if frame == b"w" else None
    if decoder is None:
        raise _refusal(_what(payload), payload)
    cursor = _Cursor(payload, HEADER + 1)
    message = decoder(cursor)
    cursor.expect_end()
    return message


def _what(payload: bytes) -> str:
    if payload[:1] != b"w":
        return f"an unknown replication message {payload[:1]!r}"
    kind = payload[KIND]
    if kind in _ROWS:
        return f"the {_ROWS[kind]} of a row where no row can be"
    if kind in _NEVER_REQUESTED:
        return f"{_NEVER_REQUESTED[kind]}, which was not requested"
    return f"an unknown pgoutput message {kind!r}"


def _refusal(what: str, payload: bytes) -> PgetlError:
    # Only the frame at the beginning is shown: what follows may hold the user's data.
    frame = payload[: HEADER + 1].hex()
    return PgetlError(ErrorKind.INTERNAL, f"The source sent {what}: {len(payload)} bytes that begin with {frame}.")


class _Cursor:
    """A read position in a payload; each read advances it."""

    __slots__ = ("_at", "_payload")

    def __init__(self, payload: bytes, at: int) -> None:
        self._payload = payload
        self._at = at

    def number(self, form: Struct) -> int:
        return int(self.numbers(form)[0])

    def numbers(self, form: Struct) -> tuple[int, ...]:
        values = form.unpack_from(self._payload, self._at)
        self._at += form.size
        return values

    def text(self) -> str:
        """Reads a string that ends with a zero byte."""
        end = self._payload.index(b"\0", self._at)
        start, self._at = self._at, end + 1
        return self._payload[start:end].decode()

    def sized(self, size: int) -> bytes:
        value = self._payload[self._at : self._at + size] if size >= 0 else b""
        if len(value) != size:
            raise ValueError(f"{size} bytes announced, {len(value)} there")
        self._at += size
        return value

    def expect_end(self) -> None:
        if self._at != len(self._payload):
            raise ValueError(f"{len(self._payload) - self._at} bytes too many")


def _keepalive(payload: bytes) -> Keepalive:
    _, position, server_time, reply = _KEEPALIVE.unpack(payload)
    return Keepalive(Boundary(position), server_time, bool(reply))


def _begin(payload: bytes) -> Begin:
    commit_lsn, commit_time, xid = _BEGIN.unpack(payload)
    return Begin(CommitLsn(commit_lsn), commit_time, xid)


def _commit(payload: bytes) -> Commit:
    _, commit_lsn, end, commit_time = _COMMIT.unpack(payload)
    return Commit(CommitLsn(commit_lsn), Boundary(end), commit_time)


def _relation(cursor: _Cursor) -> Relation:
    oid = cursor.number(_UINT32)
    # pgoutput sends an empty schema name for pg_catalog.
    table = TableName(cursor.text() or "pg_catalog", cursor.text())
    identity = _identity(cursor.number(_UINT8))
    return Relation(oid, table, identity, tuple(_column(cursor) for _ in _times(cursor, _INT16)))


def _identity(code: int) -> Identity:
    if code not in _IDENTITIES:
        raise ValueError(f"unknown replica identity {code}")
    return _IDENTITIES[code]


def _column(cursor: _Cursor) -> RelationColumn:
    flags = cursor.number(_UINT8)
    name = cursor.text()
    type_oid, modifier = cursor.numbers(_COLUMN_TYPE)
    return RelationColumn(name, type_oid, modifier, bool(flags & 1))


def _times(cursor: _Cursor, form: Struct) -> range:
    """Reads a count and returns a range of that length."""
    count = cursor.number(form)
    if count < 0:
        raise ValueError(f"a count of {count}")
    return range(count)


def _type(cursor: _Cursor) -> Type:
    return Type(cursor.number(_UINT32), cursor.text() or "pg_catalog", cursor.text())


def _origin(cursor: _Cursor) -> Origin:
    return Origin(CommitLsn(cursor.number(_UINT64)), cursor.text())


def _logical_message(cursor: _Cursor) -> LogicalMessage:
    flags = cursor.number(_UINT8)
    lsn, prefix = cursor.number(_UINT64), cursor.text()
    return LogicalMessage(bool(flags & 1), lsn, prefix, cursor.sized(cursor.number(_INT32)))


def _truncate(cursor: _Cursor) -> TruncateMessage:
    count = _times(cursor, _INT32)
    options = cursor.number(_UINT8)
    relations = tuple(cursor.number(_UINT32) for _ in count)
    return TruncateMessage(relations, bool(options & 1), bool(options & 2))


_DECODERS: dict[bytes, Callable[[_Cursor], Message]] = {
    b"R": _relation,
    b"Y": _type,
    b"O": _origin,
    b"M": _logical_message,
    b"T": _truncate,
}


# -- Commands and status messages to a walsender. ----------------------------------------------------------------------

# Version 1 suffices as long as neither streamed nor two-phase transactions are requested. Every server from version 14
# on supports it, with binary values.
_PROTOCOL_VERSION = 1
_STATUS = Struct("!cQQQqB")
_POSTGRES_EPOCH = 946_684_800


def quote_literal(text: str) -> str:
    """Quotes a string for a server with `standard_conforming_strings`, or for the replication grammar."""
    return "'" + text.replace("'", "''") + "'"


def start_replication(slot: str, publications: Sequence[str], start: Boundary, *, binary: bool, messages: bool) -> str:
    """Returns the START_REPLICATION command. `messages`: whether logical messages are sent too. The option
    `publication_names` is one string that contains a list of quoted identifiers, because a publication's name may
    contain any character."""
    names = ",".join(quote_identifier(name) for name in publications)
    options = {
        "proto_version": str(_PROTOCOL_VERSION),
        "publication_names": names,
        "binary": "true" if binary else "false",
        "messages": "true" if messages else "false",
    }
    listed = ", ".join(f"{name} {quote_literal(value)}" for name, value in options.items())
    return f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {start} ({listed})"


def standby_status(boundary: Boundary, *, reply_requested: bool, unix_time: float) -> bytes:
    """Returns a standby status update. Its written, flushed and applied positions are all `boundary`, up to which
    everything is durable in the destination."""
    clock = int((unix_time - _POSTGRES_EPOCH) * 1_000_000)
    return _STATUS.pack(b"r", boundary.lsn, boundary.lsn, boundary.lsn, clock, reply_requested)


def slot_query(slot: str) -> str:
    """Returns the query for a slot: whether it belongs to this database, its plugin, and whether its WAL still
    exists."""
    return (
        "select database is not distinct from pg_catalog.current_database(), plugin, wal_status"
        f" from pg_catalog.pg_replication_slots where slot_name = {quote_literal(slot)}"
    )


SENDER_TIMEOUT = "select setting from pg_catalog.pg_settings where name = 'wal_sender_timeout'"
"""The result is in milliseconds; 0 means that the timeout is disabled."""

HEAR_WARNINGS = "set client_min_messages = warning"


# -- When feedback must be sent to the server. Pure: the caller passes in the time of a monotonic clock. ---------------
#
# Feedback is due
# * when a keepalive requested a reply: at once;
# * when the boundary has advanced: at most once every `PROGRESS_INTERVAL`;
# * when nothing happens: several times within `wal_sender_timeout`, so that one delay does not cost the connection.
#
# **A server that is shutting down** ends its walsenders only when everything sent is confirmed. Until then it requests
# a reply again right after each of our answers, at one position: a flood. An idle server requests replies too, but only
# half a `wal_sender_timeout` after it last received feedback. So several requests in a row at one position, each of
# which comes promptly after our feedback, are the flood, and nothing else is. While it lasts answers are spaced out, as
# otherwise both sides would spin. The caller decides what to do about it; `flooded_for` returns how long it has lasted.

PROGRESS_INTERVAL = 0.1
IDLE_INTERVAL = 10.0
FLOOD_REQUESTS = 5
FLOOD_ANSWER_INTERVAL = 0.1
_PROMPT = 0.5


class Feedback:
    """The feedback state of one connection. The caller reports every keepalive (`heard`) and all feedback sent
    (`sent`)."""

    def __init__(self, now: float, sender_timeout: float | None) -> None:
        """`sender_timeout` is the server's `wal_sender_timeout` in seconds, None where it is disabled."""
        self._idle_interval = min(IDLE_INTERVAL, sender_timeout / 4 if sender_timeout else IDLE_INTERVAL)
        self._prompt = min(_PROMPT, sender_timeout / 4 if sender_timeout else _PROMPT)
        self._sent_at = now
        self._sent = START
        self._asked = False
        self._position: Boundary | None = None
        self._requests = 0
        self._first_request = now

    # -- what happened ------------------------------------------------------------------------------------------------

    def heard(self, now: float, keepalive: Keepalive) -> None:
        """The server sent a keepalive."""
        if not keepalive.reply_requested:
            return
        answered, self._asked = not self._asked, True
        if keepalive.position == self._position and now - self._sent_at <= self._prompt:
            # A request that came before the last one was answered is no reaction to an answer.
            self._requests += 1 if answered else 0
            return
        self._position = keepalive.position
        self._requests = 1
        self._first_request = now

    def sent(self, now: float, boundary: Boundary) -> None:
        """Feedback with `boundary` was sent."""
        self._asked = False
        self._sent_at = now
        self._sent = boundary

    # -- what follows from it -----------------------------------------------------------------------------------------

    def due(self, now: float, boundary: Boundary) -> bool:
        """Returns whether `boundary` must be sent now."""
        return self.due_in(now, boundary) <= 0

    def due_in(self, now: float, boundary: Boundary) -> float:
        """Returns the seconds until feedback is due, unless a keepalive or a new boundary comes first."""
        return max(0.0, self._sent_at + self._interval(boundary) - now)

    def _interval(self, boundary: Boundary) -> float:
        if self._asked:
            return FLOOD_ANSWER_INTERVAL if self._flooded else 0.0
        return PROGRESS_INTERVAL if boundary > self._sent else self._idle_interval

    def flooded_for(self, now: float) -> float | None:
        """Returns the seconds since the flood of requests began; None without a flood: the server is not shutting
        down."""
        return now - self._first_request if self._flooded else None

    @property
    def _flooded(self) -> bool:
        return self._requests >= FLOOD_REQUESTS
