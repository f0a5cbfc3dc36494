"""Deletion vectors of the Delta protocol: the sets of deleted rows of data files.

A vector is a set of row numbers in the file: a magic number, then a 64-bit Roaring bitmap in its portable form. The
vectors of one commit lie in one file ``deletion_vector_<uuid>.bin``: a version byte, then for each vector its length
(4 bytes, big-endian), its bytes, and their CRC-32 (4 bytes, big-endian). Small vectors of other writers may be inline
in the action, in Base85.

Vectors are immutable: a commit that deletes further rows of a file writes the whole vector anew. A vector that cannot
be read, or that has a wrong checksum or cardinality, means that its table is damaged (`ErrorKind.DAMAGED`): reading the
file without the vector would bring deleted rows back.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap64

from airflow_provider_pgetl.engine.destinations.delta.log.actions import VectorReference
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError

_MAGIC = struct.pack("<I", 1681511377)
_VERSION = b"\x01"
_UUID_LETTERS = 20
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = {letter: digit for digit, letter in enumerate(_ALPHABET)}


class Marks:
    """The deleted rows of one file. Row numbers count from 0, deleted rows included."""

    def __init__(self, rows: BitMap64 | None = None) -> None:
        self._rows = BitMap64() if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Marks) and bool(self._rows == other._rows)

    __hash__ = None  # type: ignore[assignment]  # marks are mutable

    def copy(self) -> Marks:
        return Marks(self._rows.copy())

    def add(self, rows: NDArray[np.int64]) -> None:
        self._rows.update(rows.tolist())

    def among(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns, for each of these rows, whether it is deleted."""
        deleted = self._rows & BitMap64(rows.tolist())
        return np.isin(rows, np.asarray(deleted.to_array(), np.int64))

    def within(self, first: int, count: int) -> NDArray[np.int64]:
        """Returns the deleted rows among the `count` rows from `first` on, numbered relative to `first`."""
        start, end = self._rows.rank(first - 1) if first else 0, self._rows.rank(first + count - 1)
        if start == end:
            return np.empty(0, np.int64)
        return np.asarray(self._rows[start:end].to_array(), np.int64) - first

    def encode(self) -> bytes:
        self._rows.run_optimize()
        return _MAGIC + bytes(self._rows.serialize())

    @classmethod
    def decode(cls, data: bytes) -> Marks:
        """Raises ValueError if the data is no bitmap."""
        if data[:4] != _MAGIC:
            raise ValueError("it does not begin as a Roaring bitmap in the portable form")
        return cls(BitMap64.deserialize(data[4:]))


def read_marks(place: TableFolder, vector: VectorReference | None) -> Marks:
    """Reads the deleted rows of a file from its vector; there are none without a vector."""
    if vector is None:
        return Marks()
    try:
        marks = Marks.decode(_content(place, vector))
    except (ValueError, KeyError, FileNotFoundError, struct.error) as error:
        raise _damaged(place, vector, str(error)) from error
    if len(marks) != vector.cardinality:
        raise _damaged(place, vector, f"it has {len(marks)} rows, not {vector.cardinality}")
    return marks


def _damaged(place: TableFolder, vector: VectorReference, why: str) -> PgetlError:
    what = f"a deletion vector ({vector.storage}, {vector.path_or_inline[:100]})"
    message = f"The Delta table at {place.uri} has {what} that cannot be read: {why}."
    return PgetlError(ErrorKind.DAMAGED, message)


def _content(place: TableFolder, vector: VectorReference) -> bytes:
    if vector.storage == "i":
        return _from_base85(vector.path_or_inline)[: vector.size]
    path, offset = vector_path(place, vector), vector.offset or 0
    framed = place.read_range(path, offset, vector.size + 8)
    (size,), data = struct.unpack(">I", framed[:4]), framed[4 : 4 + vector.size]
    if size != vector.size or framed[4 + size :] != struct.pack(">I", zlib.crc32(data)):
        raise ValueError("its length or its checksum is wrong")
    return data


def vector_path(place: TableFolder, vector: VectorReference) -> str:
    """Returns the path of the vector's file, relative to the table's folder. Raises ValueError or KeyError if the
    vector has none there."""
    if vector.storage == "p":
        return _below(place, vector.path_or_inline)
    if vector.storage != "u":
        raise ValueError(f"the protocol has no deletion vectors of type {vector.storage}")
    prefix, name = vector.path_or_inline[:-_UUID_LETTERS], vector.path_or_inline[-_UUID_LETTERS:]
    file = f"deletion_vector_{uuid.UUID(bytes=_from_base85(name))}.bin"
    return f"{prefix}/{file}" if prefix else file


def _below(place: TableFolder, address: str) -> str:
    """Converts an absolute address to a path relative to the table's folder."""
    if place.local is not None:
        found, folder = unquote(urlsplit(address).path), str(place.local)
    else:
        found, folder = address, place.uri.rstrip("/")
    path = found.removeprefix(f"{folder}/")
    if path == found:
        raise ValueError("it lies outside of the table's folder")
    return path


def write_marks(place: TableFolder, marks: Mapping[str, Marks]) -> dict[str, VectorReference]:
    """Writes the vectors of one commit, given by the paths of their data files; returns a reference to each vector."""
    if not marks:
        return {}
    name = uuid.uuid4()
    content, references = bytearray(_VERSION), {}
    for path, rows in marks.items():
        data = rows.encode()
        references[path] = VectorReference("u", _base85(name.bytes), len(content), len(data), len(rows))
        content += struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    place.write(f"deletion_vector_{name}.bin", bytes(content))
    return references


def _base85(data: bytes) -> str:
    """Base85 in the alphabet of ZeroMQ (RFC 32); the length of `data` must be a multiple of four bytes."""
    letters = []
    for (number,) in struct.iter_unpack(">I", data):
        letters += [_ALPHABET[number // 85**power % 85] for power in range(4, -1, -1)]
    return "".join(letters)


def _from_base85(text: str) -> bytes:
    groups: Sequence[str] = [text[at : at + 5] for at in range(0, len(text), 5)]
    return b"".join(struct.pack(">I", _number(group)) for group in groups)


def _number(group: str) -> int:
    number = 0
    for letter in group:
        number = number * 85 + _DIGITS[letter]
    return number
