"""Postgres' text form of arrays, taken apart: ``{1,NULL,"a \\"b\\""}``.

One dimension, counted from 1, is what a list can hold. Arrays of several dimensions, or with bounds of their own
(``[0:1]={7,8}``), are not.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa

_ELEMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^,{}"\\]+(?:\\.[^,{}"\\]*)*)', re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


class NotOneDimension(Exception):
    """An array that is no list; with its text."""


def split(texts: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Where each array begins in the second answer (int32, one more than there are arrays), and all elements one after
    another, as Arrow binary. An array that is NULL has no elements."""
    offsets = np.zeros(len(texts) + 1, dtype=np.int32)
    flat: list[bytes | None] = []
    for index, text in enumerate(texts.to_pylist()):
        if text is not None:
            flat.extend(elements(text))
        offsets[index + 1] = len(flat)
    return pa.array(offsets, pa.int32()), pa.array(flat, pa.large_binary())


def elements(text: bytes) -> list[bytes | None]:
    """One array's elements."""
    if text[:1] != b"{":
        raise NotOneDimension(text.decode(errors="replace"))
    inside = text[1:-1]
    if not inside:
        return []
    if b'"' not in inside and b"\\" not in inside and b"{" not in inside:
        return [None if part == b"NULL" else part for part in inside.split(b",")]
    return list(_quoted(text, inside))


def _quoted(text: bytes, inside: bytes) -> list[bytes | None]:
    found: list[bytes | None] = []
    at = 0
    while at <= len(inside):
        match = _ELEMENT.match(inside, at)
        if match is None:
            raise NotOneDimension(text.decode(errors="replace"))
        quoted, bare = match[1], match[2]
        if quoted is not None:
            found.append(_ESCAPED.sub(rb"\1", quoted))
        else:
            found.append(None if bare == b"NULL" else _ESCAPED.sub(rb"\1", bare))
        at = match.end() + 1
    return found
