"""Converts the messages of a source whose database is not in UTF8 to UTF8.

The server converts what it sends to a session or, in SQL_ASCII, validates it. A single value that it cannot convert
ends the stream, at the same place each time, because of one table. So such a stream is read in the encoding of the
database itself, in which the server passes everything on unchanged, and is converted here. A value that cannot be
converted becomes one that is not valid in UTF8: a destination refuses it, as it does any such value, and its table
alone is Errored.

All values arrive as text, and everything but their characters is ASCII. `CODECS` has the encodings whose Python codecs
convert each byte as the server does; the server converts others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct

_HEADER = 25
_TUPLE = _HEADER + 5
_INT16, _INT32 = Struct("!h"), Struct("!i")
_INVALID = b"\xff"
_ROWS = frozenset(b"IUD")
_RELATION = ord("R")
# Where the names begin in other messages, which end with them: those of a type, that of a replication origin.
_NAMES = {ord("Y"): _HEADER + 5, ord("O"): _HEADER + 9}

# The encoding of texts in SQL_ASCII is unknown: UTF8 is assumed.
CODECS: Mapping[str, str] = {
    "SQL_ASCII": "utf-8",
    "LATIN1": "iso8859-1",
    "LATIN2": "iso8859-2",
    "LATIN5": "iso8859-9",
    "LATIN9": "iso8859-15",
    "WIN1250": "cp1250",
    "WIN1251": "cp1251",
    "WIN1252": "cp1252",
    "KOI8R": "koi8-r",
}


def recoder(codec: str) -> Callable[[bytes], bytes]:
    """Returns a function that converts a payload in this encoding to UTF8."""

    def recode(payload: bytes) -> bytes:
        kind = payload[_HEADER] if payload[:1] == b"w" else 0
        if kind in _ROWS and not payload[_TUPLE:].isascii():
            return _row(payload, codec)
        if kind in _NAMES:
            return _names(payload, _NAMES[kind], codec)
        return _relation(payload, codec) if kind == _RELATION else payload

    return recode


def _row(payload: bytes, codec: str) -> bytes:
    """Converts up to two tuples, each of which follows its marker."""
    parts, at = [payload[:_TUPLE]], _TUPLE
    while at < len(payload):
        (columns,) = _INT16.unpack_from(payload, at + 1)
        parts.append(payload[at : at + 3])
        at += 3
        for _ in range(columns):
            kind = payload[at : at + 1]
            parts.append(kind)
            at += 1
            if kind == b"t":
                (length,) = _INT32.unpack_from(payload, at)
                value = _value(payload[at + 4 : at + 4 + length], codec)
                parts += [_INT32.pack(len(value)), value]
                at += 4 + length
    return b"".join(parts)


def _value(value: bytes, codec: str) -> bytes:
    if value.isascii():
        return value
    try:
        return value.decode(codec).encode()
    except UnicodeDecodeError:
        return value + _INVALID


def _names(payload: bytes, at: int, codec: str) -> bytes:
    return payload[:at] + payload[at:].decode(codec, errors="replace").encode()


def _relation(payload: bytes, codec: str) -> bytes:
    """Converts the names of the table and of its columns."""
    at = _TUPLE
    parts = [payload[:at]]

    def name() -> int:
        end = payload.index(b"\0", at)
        parts.append(payload[at:end].decode(codec, errors="replace").encode() + b"\0")
        return end + 1

    def fixed(size: int) -> int:
        parts.append(payload[at : at + size])
        return at + size

    at = name()
    at = name()
    (columns,) = _INT16.unpack_from(payload, at + 1)
    at = fixed(3)
    for _ in range(columns):
        at = fixed(1)
        at = name()
        at = fixed(8)
    return b"".join(parts)
