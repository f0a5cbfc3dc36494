"""Finds rows by key without reading the table: each data file has an index from keys to row numbers.

An index is built from the key columns of a file when changes first look for rows in the file. It lies in a private
folder of the worker. Data files never change, so an index is valid for as long as its file exists. Indexes are a cache:
a missing index is built again. They take up to `limit` bytes of disk; the least recently used are deleted first. If an
index does not fit at all, or the disk is full, the key columns of the file are read instead. The folder is deleted when
the process ends; the folder of a process that was killed is deleted by the next process that creates one.

A key is looked up by a hash of 128 bits. The rows of a file are kept in the order of their hashes, with a directory of
where each value of the first bits begins: a lookup reads about one page for each key, however large the file. Different
keys are never taken for the same: the hash of a single number is one-to-one, and any other hash has 128 bits and
depends on a secret of the process, so that colliding keys cannot be chosen. Values are compared as by `Lookup`: -0.0 is
not equal to 0.0, NaN equals NaN, null equals null.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from math import inf
from pathlib import Path
from threading import Lock
from weakref import finalize

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.destinations.delta.files.data_files import Ints
from airflow_provider_pgetl.engine.runtime.processes import private_folder

log = logging.getLogger(__name__)

Words = NDArray[np.uint64]

LEAST_ROWS = 50_000
_SEGMENT_ROWS = 1 << 20
_BUCKET_ROWS = 8
_NULL = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_ENTRY_BYTES = 21
_PAUSE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class KeyHashes:
    """The hashes of some keys, in their order. If keys are single numbers, `first` alone distinguishes them."""

    first: Words
    second: Words | None

    def __len__(self) -> int:
        return len(self.first)


class Hasher:
    """Hashes keys with one secret for all indexes of a process, which do not outlive the process."""

    def __init__(self) -> None:
        self._seeds = tuple(np.uint64(secrets.randbits(64)) for _ in range(2))

    def hashes(self, keys: pa.Table) -> KeyHashes:
        """Returns the hashes of the rows of `keys`, whose columns are those of the key."""
        column = keys.column(0)
        if keys.num_columns == 1 and _is_one_word(column.type):
            words = _mixed(_numbers(column) ^ self._seeds[0])
            return KeyHashes(np.where(_present(column), words, self._seeds[1]) if column.null_count else words, None)
        states = [np.full(keys.num_rows, seed, np.uint64) for seed in self._seeds]
        for one in keys.columns:
            for word, there in _words(one):
                for at, multiplier in enumerate(_MULTIPLIERS):
                    mixed = _mixed(states[at] ^ (word * multiplier))
                    states[at] = mixed if there is None else np.where(there, mixed, states[at])
        return KeyHashes(states[0], states[1])


def _mixed(words: Words) -> Words:
    """Mixes the bits one-to-one; each bit of the result depends on all bits (the finalizer of MurmurHash3)."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        words = (words ^ (words >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        mixed: Words = words ^ (words >> np.uint64(33))
    return mixed


def _is_one_word(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_temporal(kind)
    )


def _words(column: pa.ChunkedArray) -> Iterator[tuple[Words, NDArray[np.bool_] | None]]:
    """Yields the values of a column as words of 64 bits, in rounds; each round with the rows that have a word in it
    (None: all)."""
    if _is_one_word(column.type):
        yield _numbers(column), None
    elif pa.types.is_decimal(column.type):
        halves = np.concatenate([_halves(chunk) for chunk in column.chunks] or [np.empty((0, 2), np.uint64)])
        present = _present(column)
        yield np.where(present, halves[:, 0], 0), None
        yield np.where(present, halves[:, 1], 0), None
    else:
        yield from _text_words(column)
    if column.null_count:
        yield np.full(len(column), _NULL), ~_present(column)


def _present(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    return np.asarray(pc.is_valid(column).to_numpy(), np.bool_)


def _numbers(column: pa.ChunkedArray) -> Words:
    """Returns a word for each value, the same for equal values; 0 for null."""
    kind = column.type
    if pa.types.is_floating(kind):
        values = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy()
        return np.where(np.isnan(values), np.nan, values).view(np.uint64)
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    return np.asarray(pc.fill_null(column.cast(pa.int64()), 0).to_numpy()).view(np.uint64)


def _halves(chunk: pa.Array) -> Words:
    width = chunk.type.bit_width // 64
    found = np.frombuffer(chunk.buffers()[1], np.uint64)[width * chunk.offset :][: width * len(chunk)]
    return found.reshape(-1, width)[:, :2]


def _text_words(column: pa.ChunkedArray) -> Iterator[tuple[Words, NDArray[np.bool_] | None]]:
    """Yields eight bytes of each value at a time, then the lengths."""
    whole = [_bytes_of(chunk) for chunk in column.chunks]
    starts, lengths, bases = [], [], 0
    for data, offsets in whole:
        starts.append(bases + offsets[:-1])
        lengths.append(np.diff(offsets))
        bases += len(data)
    data = np.concatenate([*(data for data, _ in whole), np.zeros(8, np.uint8)])
    begins = np.concatenate([np.empty(0, np.int64), *starts])
    sizes = np.concatenate([np.empty(0, np.int64), *lengths])
    at_any_byte: Words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    for done in range(0, int(sizes.max(initial=0)), 8):
        there = sizes > done
        left = np.minimum(np.maximum(sizes - done, 0), 8)
        words = at_any_byte[np.where(there, begins + done, 0)]
        unused = ((8 - left) * 8).astype(np.uint64)
        kept = np.where(left == 8, words, (words << unused) >> unused)
        yield np.where(there, kept, np.uint64(0)), there
    yield sizes.astype(np.uint64), None


def _bytes_of(chunk: pa.Array) -> tuple[NDArray[np.uint8], Ints]:
    """Returns the bytes of all values, and where each value begins in them. Lists are replaced by their printed form,
    as in `Lookup`."""
    if pa.types.is_nested(chunk.type):
        chunk = pa.array([None if value is None else repr(value) for value in chunk.to_pylist()], pa.large_string())
    is_binary = pa.types.is_binary(chunk.type) or pa.types.is_large_binary(chunk.type)
    chunk = pc.fill_null(chunk.cast(pa.large_binary() if is_binary else pa.large_string()), b"" if is_binary else "")
    _, offsets, data = chunk.buffers()
    places = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    if data is None or not len(places):
        return np.empty(0, np.uint8), np.zeros(len(chunk) + 1, np.int64)
    return np.frombuffer(data, np.uint8)[places[0] : places[-1]], places - places[0]


@dataclass(frozen=True, slots=True)
class _Segment:
    """A part of an index: some rows of a file, in the order of their hashes."""

    path: Path
    first_row: int
    rows: int
    bits: int
    wide: bool

    @classmethod
    def write(cls, path: Path, first_row: int, hashes: KeyHashes) -> _Segment:
        rows = len(hashes)
        bits = max(rows // _BUCKET_ROWS, 1).bit_length()
        order = np.argsort(hashes.first)
        sorted_ = hashes.first[order]
        edges = np.arange((1 << bits) + 1, dtype=np.uint64)
        buckets = np.searchsorted(sorted_ >> np.uint64(64 - bits), edges).astype(np.uint32)
        with path.open("wb") as file:
            buckets.tofile(file)
            order.astype(np.uint32).tofile(file)
            sorted_.tofile(file)
            if hashes.second is not None:
                hashes.second[order].tofile(file)
        return cls(path, first_row, rows, bits, hashes.second is not None)

    def find(self, keys: KeyHashes) -> tuple[Ints, Ints]:
        """Returns the rows that have one of the keys, and for each the number of its key."""
        size = (1 << self.bits) + 1
        buckets = np.memmap(self.path, np.uint32, "r", 0, (size,))
        order = np.memmap(self.path, np.uint32, "r", 4 * size, (self.rows,))
        first = np.memmap(self.path, np.uint64, "r", 4 * (size + self.rows), (self.rows,))
        second = np.memmap(self.path, np.uint64, "r", 4 * size + 12 * self.rows, (self.rows,)) if self.wide else None
        bucket = (keys.first >> np.uint64(64 - self.bits)).astype(np.int64)
        at, end = buckets[bucket].astype(np.int64), buckets[bucket + 1].astype(np.int64)
        rows, hits = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        which = np.flatnonzero(at < end)
        at, end = at[which], end[which]
        while len(which):
            same = first[at] == keys.first[which]
            if second is not None and keys.second is not None:
                same &= second[at] == keys.second[which]
            rows.append(self.first_row + order[at[same]].astype(np.int64))
            hits.append(which[same])
            at = at + 1
            going = at < end
            which, at, end = which[going], at[going], end[going]
        return np.concatenate(rows), np.concatenate(hits)


class FileIndex:
    """The index of one data file. `users` counts the blocks that are using it."""

    def __init__(self, folder: Path, batches: Iterable[tuple[int, pa.Table]], hasher: Hasher) -> None:
        """`batches` are the key columns of all rows, each table with the number of its first row. Raises `NoRoom`."""
        self.users = 0
        self._folder = folder
        self._segments: list[_Segment] = []
        self._waiting: list[KeyHashes] = []
        self._first = 0
        try:
            with _writing():
                folder.mkdir(parents=True)
            for _, keys in batches:
                self._waiting.append(hasher.hashes(keys))
                if sum(map(len, self._waiting)) >= _SEGMENT_ROWS:
                    self._write()
            self._write()
        except BaseException:
            self.remove()
            raise
        self.size = sum(one.path.stat().st_size for one in self._segments)

    def _write(self) -> None:
        waiting = [one for one in self._waiting if len(one)]
        if not waiting:
            return
        seconds = [one.second for one in waiting if one.second is not None]
        firsts = np.concatenate([one.first for one in waiting])
        joined = KeyHashes(firsts, np.concatenate(seconds) if seconds else None)
        with _writing():
            path = self._folder / f"{len(self._segments)}"
            self._segments.append(_Segment.write(path, self._first, joined))
        self._first += len(joined)
        self._waiting = []

    def find(self, keys: KeyHashes) -> tuple[Ints, Ints]:
        """Returns the rows that have one of the keys, rising, and for each the number of its key."""
        found = [segment.find(keys) for segment in self._segments]
        rows = np.concatenate([np.empty(0, np.int64), *(rows for rows, _ in found)])
        hits = np.concatenate([np.empty(0, np.int64), *(hits for _, hits in found)])
        order = np.argsort(rows, kind="stable")
        return rows[order], hits[order]

    @property
    def is_there(self) -> bool:
        """Whether the index's files still exist. Some systems delete temporary files that were not used for days."""
        return all(one.path.exists() for one in self._segments)

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class NoRoom(Exception):
    """There is no room on disk for an index. The key columns can be read instead."""


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise NoRoom(str(error)) from error


class KeyIndexes:
    """The indexes of all tables of a worker, shared by its threads. `limit` is in bytes; with 0, none are built.

    An index is deleted when its room is needed for another, unless it is in use at that time. After the disk was found
    to be full, no index is built for some minutes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._hasher = Hasher()
        self._lock = Lock()
        self._indexes: OrderedDict[tuple[str, tuple[str, ...]], FileIndex] = OrderedDict()
        self._given_up: list[FileIndex] = []
        self._folder: Path | None = None
        self._numbers = count()
        self._promised = 0
        self._paused_until = -inf

    @property
    def size(self) -> int:
        """The bytes that all indexes take on disk."""
        return sum(one.size for one in (*self._indexes.values(), *self._given_up))

    @contextmanager
    def known(self, path: str, names: Iterable[str]) -> Iterator[FileIndex | None]:
        """Provides the index of a file by these columns, or None. It exists at least until the end of the block."""
        key = path, tuple(names)
        with self._lock:
            index = self._indexes.get(key)
            if index is not None and not index.is_there:
                self._given_up.append(self._indexes.pop(key))
                index = None
            if index is not None:
                self._indexes.move_to_end(key)
                index.users += 1
            self._clear()
        with self._using(index):
            yield index

    @contextmanager
    def made(
        self, path: str, names: Iterable[str], rows: int, batches: Iterable[tuple[int, pa.Table]]
    ) -> Iterator[FileIndex | None]:
        """Builds an index of a file that has `rows` rows; it exists at least until the end of the block. Provides None
        if there is no room for it, or if the file is too small to need one."""
        index = self._make((path, tuple(names)), rows, batches)
        with self._using(index):
            yield index

    @contextmanager
    def _using(self, index: FileIndex | None) -> Iterator[None]:
        try:
            yield
        finally:
            if index is not None:
                with self._lock:
                    index.users -= 1
                    self._clear()

    def _make(
        self, key: tuple[str, tuple[str, ...]], rows: int, batches: Iterable[tuple[int, pa.Table]]
    ) -> FileIndex | None:
        wanted = rows * _ENTRY_BYTES
        if rows < LEAST_ROWS or not self._reserve(wanted):
            return None
        index = None
        try:
            index = FileIndex(self._new_folder(), batches, self._hasher)
            index.users = 1
        except NoRoom as error:
            log.warning("No indexes of keys are made for some minutes: %s", error)
            self._paused_until = time.monotonic() + _PAUSE_SECONDS
        finally:
            with self._lock:
                self._promised -= wanted
                if index is not None:
                    if (other := self._indexes.pop(key, None)) is not None:
                        self._given_up.append(other)
                    self._indexes[key] = index
                self._clear()
        return index

    def _reserve(self, wanted: int) -> bool:
        """Makes room by deleting the least recently used indexes. Returns whether there is enough."""
        with self._lock:
            if wanted > self._limit or time.monotonic() < self._paused_until:
                return False
            for key in [key for key, one in self._indexes.items() if not one.users]:
                if self.size + self._promised + wanted <= self._limit:
                    break
                self._given_up.append(self._indexes.pop(key))
                self._clear()
            if self.size + self._promised + wanted > self._limit:
                return False
            self._promised += wanted
            return True

    def _new_folder(self) -> Path:
        with self._lock, _writing():
            if self._folder is None:
                self._folder = private_folder("keys")
                self._end = finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            return self._folder / f"{next(self._numbers)}"

    def _clear(self) -> None:
        for one in [one for one in self._given_up if not one.users]:
            self._given_up.remove(one)
            one.remove()

    def hashes(self, keys: pa.Table) -> KeyHashes:
        return self._hasher.hashes(keys)

    def retain(self, folder: str, files: Iterable[str]) -> None:
        """Deletes the indexes of files that the table in this folder no longer has."""
        kept = {f"{folder}/{path}" for path in files}
        with self._lock:
            for key in [one for one in self._indexes if one[0].startswith(f"{folder}/") and one[0] not in kept]:
                self._given_up.append(self._indexes.pop(key))
            self._clear()

    def close(self) -> None:
        with self._lock:
            self._indexes.clear()
            self._given_up.clear()
            if self._folder is not None:
                self._end()
                self._folder = None
