"""From a CopyData payload to a message: pure functions, strict to the byte.

A payload is either a keepalive, or XLogData: 'w', three int64 (WAL start, WAL end, the server's clock), and one
message of pgoutput. What is cut short, too long or unknown is a `PgetlError`, never an IndexError and never a guess.

Rows are refused here: they go to the `assembler`'s buckets whole. So are the messages of streamed and of two-phase
transactions, which are sent only to those who ask for them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from struct import Struct

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.tables import Identity, TableName
from airflow_provider_pgetl.engine.wal.messages import (
    Begin,
    Commit,
    Keepalive,
    LogicalMessage,
    Message,
    Origin,
    Relation,
    RelationColumn,
    Truncate,
    Type,
)

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
    """The message in a CopyData payload."""
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
    # Only the beginning is shown, and of that nothing but the frame: what follows may hold the user's data.
    frame = payload[: HEADER + 1].hex()
    return PgetlError(ErrorKind.INTERNAL, f"The source sent {what}: {len(payload)} bytes that begin with {frame}.")


class _Cursor:
    """A place in a payload; reading moves it on."""

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
        """A string that a zero byte ends."""
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
    # pgoutput leaves the name of pg_catalog out.
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
    """As many rounds as the number says that comes next."""
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


def _truncate(cursor: _Cursor) -> Truncate:
    count = _times(cursor, _INT32)
    options = cursor.number(_UINT8)
    relations = tuple(cursor.number(_UINT32) for _ in count)
    return Truncate(relations, bool(options & 1), bool(options & 2))


_DECODERS: dict[bytes, Callable[[_Cursor], Message]] = {
    b"R": _relation,
    b"Y": _type,
    b"O": _origin,
    b"M": _logical_message,
    b"T": _truncate,
}
