"""COPY's text format, for destinations that look at rows.

A value is the bytes of the type's text form, as a change in text form carries them; None is NULL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|.)", re.DOTALL)
_NAMED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_SPECIAL = re.compile(rb"[\\\n\r\t]")
_WRITTEN = {b"\\": rb"\\", b"\n": rb"\n", b"\r": rb"\r", b"\t": rb"\t"}


def rows(names: Sequence[str], blocks: Iterable[bytes]) -> Iterator[dict[str, bytes | None]]:
    """The rows of a COPY stream; blocks may end anywhere."""
    for line in lines(blocks):
        values = line.split(b"\t") if names else []
        yield dict(zip(names, map(read, values), strict=True))


def lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The stream's lines, without their ends. A newline inside a value is escaped, so every newline ends a line."""
    rest = b""
    for block in blocks:
        *whole, rest = (rest + bytes(block)).split(b"\n")
        yield from whole


def read(field: bytes) -> bytes | None:
    if field == rb"\N":
        return None
    return _ESCAPE.sub(_unescape, field) if b"\\" in field else field


def write(values: Iterable[bytes | None]) -> bytes:
    """One row as a line of the stream."""
    return b"\t".join(rb"\N" if value is None else _escape(value) for value in values) + b"\n"


def _escape(value: bytes) -> bytes:
    return _SPECIAL.sub(lambda match: _WRITTEN[match[0]], value)


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if code[:1] == b"x" and len(code) > 1:
        return bytes([int(code[1:], 16)])
    if code[:1].isdigit() and code[:1] < b"8":
        return bytes([int(code, 8) & 0xFF])
    return _NAMED.get(code, code)
