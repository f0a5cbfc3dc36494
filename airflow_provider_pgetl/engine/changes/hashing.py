"""Computes a 64-bit hash of each row, and of each row's key, from whole Arrow columns.

Two rows have the same hash if all their values are the same to the bit and, except for one case in 2^64, only then:
-0.0 is not 0.0, NULL is not the empty string, an additional blank makes another text, and in a list the order counts.
The one exception is NaN: all NaNs are equal. Columns of the same name must have the same type on both sides; texts and
bytes may be of any width.

No Python code runs per value, except for long values, which are digested with BLAKE2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Ints = NDArray[np.int64]

_ONE, _TWO, _THREE = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_HALF, _MOST = np.uint64(32), np.uint64(33)
_NULL = np.uint64(0x6E756C6C6E756C6C)
_LONG = 256  # bytes; longer values are digested one by one
# Masks for the last word of a value: the bits that belong to the value, by the number of bytes.
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)


def hash_rows(columns: Sequence[pa.Array | pa.ChunkedArray], count: int) -> Hashes:
    """Returns a hash for each of `count` rows of these columns. The order of the columns counts."""
    total = np.full(count, _THREE, np.uint64)
    for column in columns:
        total ^= hash_column(column)
        total *= _ONE
        total ^= total >> _HALF
    return mixed(total)


def hash_column(column: pa.Array | pa.ChunkedArray) -> Hashes:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):  # more than 2 GiB of text cannot be combined
        return np.concatenate([hash_column(chunk) for chunk in array.chunks])
    if not len(array):
        return np.empty(0, np.uint64)
    found = mixed(_values(array))
    if array.null_count:
        found[~valid(array)] = _NULL
    return found


def mixed(numbers: Hashes) -> Hashes:
    """Mixes the bits of each number, so that each bit of the input affects all bits of the result. Changes the numbers
    in place."""
    numbers ^= numbers >> _MOST
    numbers *= _FIRST
    numbers ^= numbers >> _MOST
    numbers *= _SECOND
    numbers ^= numbers >> _MOST
    return numbers


def valid(array: pa.Array) -> NDArray[np.bool_]:
    """Returns which values are not null. Reads the buffer directly: Arrow's own conversion to numpy imports pandas,
    which takes a second."""
    bits = array.buffers()[0]
    if bits is None:
        return np.full(len(array), array.null_count == 0)
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return unpacked[array.offset : array.offset + len(array)].astype(np.bool_)


def _values(array: pa.Array) -> Hashes:
    """Returns the numbers to mix; for nulls they are arbitrary."""
    kind = array.type
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.uint64)
    if pa.types.is_boolean(kind):
        return _fixed(pc.cast(array, pa.uint8()), 1)
    if pa.types.is_floating(kind):
        return _floats(array)
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return _texts(array, np.int32)
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return _texts(array, np.int64)
    if pa.types.is_list(kind):
        return _lists(array)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        return _fixed(array, kind.bit_width // 8)
    return _texts(pa.array([repr(value) for value in array.to_pylist()], pa.large_string()), np.int64)


def _fixed(array: pa.Array, size: int) -> Hashes:
    """Hashes values of a fixed size of `size` bytes."""
    data = array.buffers()[1]
    if size <= 8:
        every = np.frombuffer(data, np.dtype(f"<u{size}"))
        return every[array.offset : array.offset + len(array)].astype(np.uint64)
    words = np.frombuffer(data, "<u8").reshape(-1, size // 8)[array.offset : array.offset + len(array)]
    total = words[:, 0].copy()
    for word in range(1, size // 8):
        total = mixed(total) ^ words[:, word]
    return total


def _floats(array: pa.Array) -> Hashes:
    bits = _fixed(array, array.type.bit_width // 8)
    if array.type == pa.float64():
        bits[np.isnan(bits.view(np.float64))] = _ONE
    elif array.type == pa.float32():
        bits[np.isnan(bits.astype(np.uint32).view(np.float32))] = _ONE
    return bits


def _lists(array: pa.ListArray) -> Hashes:
    """Hashes each element together with its index."""
    offsets = _offsets(array, np.int32)
    first, last = int(offsets[0]), int(offsets[-1])
    starts, lengths = offsets[:-1] - first, np.diff(offsets)
    places = np.arange(last - first) - np.repeat(starts, lengths)
    elements = mixed(hash_column(array.values.slice(first, last - first)) + places.astype(np.uint64) * _ONE)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(elements, dtype=np.uint64)])
    found: Hashes = sums[starts + lengths] - sums[starts] + lengths.astype(np.uint64) * _TWO
    return found


def _texts(array: pa.Array, width: Any) -> Hashes:
    """Hashes eight bytes of all values at a time, as long as there are values that long."""
    offsets, buffer = _offsets(array, width), array.buffers()[2]
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + 8, np.uint8)  # the last word may begin at the last byte
    if buffer is not None:
        data[: last - first] = np.frombuffer(buffer, np.uint8)[first:last]
    starts, lengths = offsets[:-1] - first, np.diff(offsets)
    total = mixed(lengths.astype(np.uint64) + _TWO)
    short = lengths <= _LONG
    _digest_words(total, data, starts, np.where(short, lengths, 0))
    for at in np.flatnonzero(~short).tolist():
        total[at] = _digest(data[starts[at] : starts[at] + lengths[at]])
    return total


def _digest_words(total: Hashes, data: NDArray[np.uint8], starts: Ints, lengths: Ints) -> None:
    words = np.ndarray((len(data) - 7,), "<u8", data.data, strides=(1,))  # one at each byte
    chosen = np.flatnonzero(lengths > 0)
    for at in range(0, _LONG, 8):
        if not len(chosen):
            return
        found = words[starts[chosen] + at] & _MASKS[np.minimum(lengths[chosen] - at, 8)]
        part = (total[chosen] ^ found) * _ONE
        total[chosen] = part ^ (part >> _HALF)
        chosen = chosen[lengths[chosen] > at + 8]


def _digest(data: NDArray[np.uint8]) -> np.uint64:
    return np.uint64(int.from_bytes(hashlib.blake2b(data.data, digest_size=8).digest(), "little"))


def _offsets(array: pa.Array, width: Any) -> Ints:
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(len(array) + 1, np.int64)
    return np.frombuffer(buffer, width)[array.offset : array.offset + len(array) + 1].astype(np.int64)
