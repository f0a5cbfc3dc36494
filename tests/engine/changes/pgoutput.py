"""An encoder of pgoutput row messages, written from the protocol's documentation and not from our decoder."""

from __future__ import annotations

import struct
from collections.abc import Sequence

ABSENT = object()
Value = bytes | None | object
Row = Sequence[Value]


def tuple_data(row: Row, kind: bytes = b"t") -> bytes:
    return struct.pack("!h", len(row)) + b"".join(_column(value, kind) for value in row)


def _column(value: Value, kind: bytes) -> bytes:
    if value is None:
        return b"n"
    if not isinstance(value, bytes):
        return b"u"
    return kind + struct.pack("!i", len(value)) + value


def xlog_data(payload: bytes, lsn: int = 0) -> bytes:
    return b"w" + struct.pack("!qqq", lsn, lsn, 0) + payload


def insert(relation: int, new: Row, kind: bytes = b"t") -> bytes:
    return xlog_data(b"I" + struct.pack("!I", relation) + b"N" + tuple_data(new, kind))


def update(relation: int, new: Row, *, key: Row | None = None, old: Row | None = None, kind: bytes = b"t") -> bytes:
    before = b""
    if key is not None:
        before = b"K" + tuple_data(key, kind)
    elif old is not None:
        before = b"O" + tuple_data(old, kind)
    return xlog_data(b"U" + struct.pack("!I", relation) + before + b"N" + tuple_data(new, kind))


def delete(relation: int, *, key: Row | None = None, old: Row | None = None, kind: bytes = b"t") -> bytes:
    marker, row = (b"K", key) if key is not None else (b"O", old)
    assert row is not None
    return xlog_data(b"D" + struct.pack("!I", relation) + marker + tuple_data(row, kind))
