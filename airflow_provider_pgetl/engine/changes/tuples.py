"""Tuples as pointers into one buffer: they are parsed, selected, overlaid and encoded without decoding a value.

pgoutput sends a tuple as ``int16 columns`` and, per column, a kind byte, followed by ``int32 length`` and the bytes
where there is a value. Here a set of tuples of one width is three matrices of shape (columns, tuples): the kind of each
value, and its offset and length in the buffer. All operations are numpy over whole columns; no Python runs per row or
per value.

Invariants
* `kinds` holds NULL, TEXT, BINARY, ABSENT (an unchanged value that the source did not send) or MISSING (there is no
  tuple here).
* Offsets are meaningful only where the kind is TEXT or BINARY; elsewhere the length is 0.
* A `Tuples` never changes; selections share the buffer.
* Offsets and lengths have the smallest integer type that the buffer permits: for small values they take most of the
  memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Places = NDArray[np.signedinteger[Any]]

MISSING = 0
NULL = ord("n")
ABSENT = ord("u")
TEXT = ord("t")
BINARY = ord("b")

COPY_BINARY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_BINARY_TRAILER = b"\xff\xff"
_BLOCK_BYTES = 1 << 20
_MOVED_BYTES = 64 << 10
_NOTHING = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Tuples:
    """Pointers to the values of `count` tuples of `width` columns each."""

    buffer: Bytes
    kinds: Bytes
    offsets: Places
    lengths: Places

    @property
    def width(self) -> int:
        return int(self.kinds.shape[0])

    @property
    def count(self) -> int:
        return int(self.kinds.shape[1])

    def __len__(self) -> int:
        return self.count

    def take(self, rows: Ints) -> Tuples:
        """Returns the tuples at these indexes, in this order."""
        return Tuples(self.buffer, self.kinds[:, rows], self.offsets[:, rows], self.lengths[:, rows])

    def columns(self, indexes: Sequence[int]) -> Tuples:
        """Returns the same tuples with these columns only, in this order."""
        pick = list(indexes)
        return Tuples(self.buffer, self.kinds[pick], self.offsets[pick], self.lengths[pick])

    def gather(self, sources: Ints) -> Tuples:
        """Returns tuples whose value in column c of tuple i is that of tuple `sources[c, i]`, absent where that is
        -1."""
        columns = np.arange(self.width)[:, None]
        known = np.maximum(sources, 0)
        kinds = np.where(sources >= 0, self.kinds[columns, known], np.uint8(ABSENT))
        return Tuples(self.buffer, kinds, self.offsets[columns, known], self.lengths[columns, known])

    def with_values_of(self, other: Tuples) -> Tuples:
        """Returns these tuples with absent values taken from the same place in `other`, which shares the buffer.

        A null in `other` is not taken: an absent value is a large one, so the null means that `other` lacks it.
        """
        known = self.absent & _valued(other.kinds)
        if not known.any():
            return self
        return Tuples(
            self.buffer,
            np.where(known, other.kinds, self.kinds),
            np.where(known, other.offsets, self.offsets),
            np.where(known, other.lengths, self.lengths),
        )

    def concatenated(self, other: Tuples) -> Tuples:
        """Returns these tuples followed by those of `other`; both share the buffer."""
        return Tuples(
            self.buffer,
            np.concatenate([self.kinds, other.kinds], axis=1),
            np.concatenate([self.offsets, other.offsets], axis=1),
            np.concatenate([self.lengths, other.lengths], axis=1),
        )

    def beside(self, other: Tuples) -> Tuples:
        """Returns these tuples with the columns of `other`, which has as many tuples, after their own; both share the
        buffer."""
        return Tuples(
            self.buffer,
            np.concatenate([self.kinds, other.kinds]),
            np.concatenate([self.offsets, other.offsets]),
            np.concatenate([self.lengths, other.lengths]),
        )

    @property
    def absent(self) -> NDArray[np.bool_]:
        return np.asarray(self.kinds == ABSENT)

    def valued(self, columns: Sequence[int]) -> NDArray[np.bool_]:
        """Returns per tuple whether every one of these columns has a value: it is not null, absent or missing."""
        return np.asarray(_valued(self.kinds[list(columns)]).all(axis=0))

    def value(self, column: int, row: int) -> bytes | None:
        """Returns the bytes of one value; None where there is none. Only for code that reads single rows."""
        if self.kinds[column, row] not in (TEXT, BINARY):
            return None
        start = int(self.offsets[column, row])
        return self.buffer[start : start + int(self.lengths[column, row])].tobytes()

    def column_array(self, column: int) -> pa.Array:
        """Returns one column's values as Arrow large_binary; null where there is no value."""
        lengths = self.lengths[column]
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        data = np.empty(int(ends[-1]), dtype=np.uint8)
        move(data, ends[:-1], self.buffer, self.offsets[column], lengths)
        kinds = self.kinds[column]
        valid = np.packbits(_valued(kinds), bitorder="little")
        buffers = [pa.py_buffer(valid), pa.py_buffer(ends), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.large_binary(), self.count, buffers)

    def copy_binary(self) -> Iterator[bytes]:
        """Yields the tuples as rows of COPY BINARY, in blocks of about a megabyte, without the file header and trailer.

        An absent or missing value is written as NULL; a caller that copies those must distinguish them by other means.
        """
        sizes = 2 + 4 * self.width + self.lengths.sum(axis=0)
        for first, last in _blocks(sizes, _BLOCK_BYTES):
            yield _encode(self.take(np.arange(first, last)), sizes[first:last])


def _valued(kinds: Bytes) -> NDArray[np.bool_]:
    return np.asarray((kinds == TEXT) | (kinds == BINARY))


def parse(buffer: Bytes, starts: Ints, width: int) -> tuple[Tuples, Ints]:
    """Returns the tuples that begin at `starts` (at their column count), and the offset at which each ends."""
    count = len(starts)
    kinds = np.empty((width, count), dtype=np.uint8)
    offsets = np.empty((width, count), dtype=_place_type(buffer))
    lengths = np.empty((width, count), dtype=_place_type(buffer))
    at = starts + 2
    for column in range(width):
        kind = buffer[at]
        valued = _valued(kind)
        length = np.where(valued, _read_int32(buffer, np.where(valued, at + 1, 0)), 0)
        kinds[column], offsets[column], lengths[column] = kind, at + 5, length
        at = at + 1 + np.where(valued, 4 + length, 0)
    return Tuples(buffer, kinds, offsets, lengths), at


def widths(buffer: Bytes, starts: Ints) -> Ints:
    """Returns the column counts of the tuples that begin at `starts`."""
    return (buffer[starts].astype(np.int64) << 8) | buffer[starts + 1]


def missing(buffer: Bytes, width: int, count: int) -> Tuples:
    """Returns `count` entries without a tuple: all kinds are MISSING."""
    shape = (width, count)
    places = np.zeros(shape, _place_type(buffer))
    return Tuples(buffer, np.zeros(shape, np.uint8), places, places)


def scatter(tuples: Tuples, rows: Ints, count: int) -> Tuples:
    """Returns `count` entries: the given tuples at the indexes `rows`, no tuple elsewhere."""
    if len(rows) == count:
        return tuples
    shape = (tuples.width, count)
    kinds, offsets = np.zeros(shape, np.uint8), np.zeros(shape, tuples.offsets.dtype)
    lengths = np.zeros(shape, tuples.lengths.dtype)
    kinds[:, rows], offsets[:, rows], lengths[:, rows] = tuples.kinds, tuples.offsets, tuples.lengths
    return Tuples(tuples.buffer, kinds, offsets, lengths)


def _place_type(buffer: Bytes) -> type[np.signedinteger[Any]]:
    return np.int32 if len(buffer) < 1 << 31 else np.int64


def codes(tuples: Tuples) -> Ints:
    """Returns a number per tuple; two are equal if and only if all values of the tuples are equal, to the byte. NULL,
    absent and missing values count as equal, as do equal bytes in text and in binary."""
    if tuples.width == 1 and np.all(tuples.lengths == 8) and tuples.count:
        values = _read_int64(tuples.buffer, tuples.offsets[0])
        return _dictionary(pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)]))
    return _dictionary(_as_binary(tuples))


def _as_binary(tuples: Tuples) -> pa.Array:
    """Returns each tuple's lengths and values, in the form of COPY BINARY, as one opaque string."""
    sizes = 2 + 4 * tuples.width + tuples.lengths.sum(axis=0)
    ends = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    data = b"".join(tuples.copy_binary())
    return pa.Array.from_buffers(pa.large_binary(), tuples.count, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _dictionary(values: pa.Array) -> Ints:
    """Returns the dictionary index of each value. It reads the Arrow buffers directly, because Arrow's own conversions
    from and to numpy import pandas, which takes a second."""
    indices = values.dictionary_encode().indices
    numbers = np.frombuffer(indices.buffers()[1], dtype=np.int32, count=len(indices), offset=4 * indices.offset)
    return numbers.astype(np.int64)


def _blocks(sizes: Places, about: int) -> Iterator[tuple[int, int]]:
    """Yields index ranges that together cover all of `sizes`, each of about `about` bytes."""
    if not len(sizes):
        return
    block = np.cumsum(sizes) // about
    edges = np.flatnonzero(np.diff(block)) + 1
    yield from zip([0, *edges.tolist()], [*edges.tolist(), len(sizes)], strict=True)


def _encode(tuples: Tuples, sizes: Ints) -> bytes:
    out = np.empty(int(sizes.sum()), dtype=np.uint8)
    at = np.cumsum(sizes) - sizes
    out[at], out[at + 1] = tuples.width >> 8, tuples.width & 0xFF
    at = at + 2
    for kind, offset, length in zip(tuples.kinds, tuples.offsets, tuples.lengths, strict=True):
        valued = _valued(kind)
        write_int32(out, at, np.where(valued, length.astype(np.int64), _NOTHING))
        move(out, at + 4, tuples.buffer, offset, length)
        at = at + 4 + length
    return out.tobytes()


def move(target: Bytes, to: Ints, source: Bytes, start: Places, lengths: Places) -> None:
    """Copies `lengths[i]` bytes from `source[start[i]]` to `target[to[i]]` for all i at once."""
    if not len(lengths):
        return
    if np.all(lengths == lengths[0]):
        _move_equal(target, to, source, start, int(lengths[0]))
        return
    for first, last in _blocks(lengths, _MOVED_BYTES):
        _move_few(target, to[first:last], source, start[first:last], lengths[first:last])


def _move_few(target: Bytes, to: Ints, source: Bytes, start: Places, lengths: Places) -> None:
    """Like `move`, with temporary arrays that hold several numbers per byte; so it is called for small blocks only."""
    if len(lengths) == 1:
        _move_equal(target, to, source, start, int(lengths[0]))
        return
    ends = np.cumsum(lengths)
    steps = np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths)
    target[np.repeat(to, lengths) + steps] = source[np.repeat(start, lengths) + steps]


def _move_equal(target: Bytes, to: Ints, source: Bytes, start: Places, length: int) -> None:
    if length > len(to):
        for at, begin in zip(to.tolist(), start.tolist(), strict=True):
            target[at : at + length] = source[begin : begin + length]
        return
    for step in range(length):
        target[to + step] = source[start + step]


def _read_int32(buffer: Bytes, at: Ints) -> Ints:
    value = buffer[at].astype(np.int64)
    for step in range(1, 4):
        value = (value << 8) | buffer[at + step]
    return value


def _read_int64(buffer: Bytes, at: Places) -> Ints:
    value = buffer[at].astype(np.int64)
    for step in range(1, 8):
        value = (value << 8) | buffer[at + step]
    return value


def write_int32(target: Bytes, at: Ints, values: Ints) -> None:
    for step in range(4):
        target[at + step] = (values >> (24 - 8 * step)) & 0xFF
