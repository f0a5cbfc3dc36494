"""Finds which rows of two sides differ, in memory that does not grow with the number of rows. Pure, except for
temporary files.

Each row is represented by two hashes: one of its key, one of all its values (`changes.hashing`). If a table has no key,
all its values are its key, and it is compared as a bag.

1. **Digest.** Each side is read once, and only sums are kept: keys fall into `BUCKETS` buckets, and for each bucket the
   number of rows and two sums over them are kept. If all buckets are equal, the sides are equal, and the comparison
   ends.
2. **Sort out.** Both sides are read again, and the rows of the buckets that differ are written to files, split by
   bucket so that a pair of files fits into memory. For each pair of files, the rows that one side has more often than
   the other are left over. All of them are counted; for the first few keys, the numbers of the parts that contained
   their rows are kept.
3. **Show.** Those parts are read once more, for the values.

A side is read in *parts*, each of which can be read again separately. At most `ROWS_AT_ONCE` rows of 24 bytes are held,
and what sorting them takes. If more than `FILES_AT_MOST` times as many rows are to be sorted out, one part in
`FILES_AT_MOST` of them is held.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.changes.hashing import Hashes, Ints, hash_rows, mixed
from airflow_provider_pgetl.engine.destinations.protocol import Part
from airflow_provider_pgetl.engine.model.verification import NULL, Difference, Kind, Row

BUCKETS = 4096
ROWS_AT_ONCE = 1 << 19
FILES_AT_MOST = 256
_BUCKET_SHIFT = np.uint64(64 - 12)
_OTHER = np.uint64(0x27D4EB2F165667C5)

_ROW = np.dtype([("key", "<u8"), ("row", "<u8"), ("part", "<u4"), ("count", "<u4")])
Fingerprints = np.ndarray[tuple[int], np.dtype[np.void]]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows are compared, by the hashes of their keys. `only` and `without` are sorted. `sample`: the first hash
    of the sample and the number of hashes, of all 2^64, that it spans."""

    only: Hashes | None = None
    without: Hashes | None = None
    sample: tuple[int, int] | None = None

    def of(self, keys: Hashes) -> NDArray[np.bool_] | None:
        """Returns which of these keys are selected; None if all are."""
        chosen: NDArray[np.bool_] | None = None
        if self.sample is not None:
            first, width = self.sample
            chosen = keys - np.uint64(first) < np.uint64(width)
        if self.only is not None:
            chosen = _both(chosen, _among(keys, self.only))
        if self.without is not None and len(self.without):
            chosen = _both(chosen, ~_among(keys, self.without))
        return chosen


def sample_of(share: float, seed: int) -> tuple[int, int] | None:
    """Returns a sample of this share of all keys, a different one for each seed; None if it contains all keys."""
    if share >= 1.0:
        return None
    first = int(mixed(np.array([seed], np.uint64))[0])
    return first, int(share * 2**64)


@dataclass(frozen=True, slots=True)
class Side:
    """The rows of one side, all with the same columns. `key` names the key columns."""

    parts: Sequence[Part]
    key: tuple[str, ...]
    selection: Selection = field(default_factory=Selection)

    def rows(self) -> Iterator[tuple[int, pa.Table, Hashes, Hashes]]:
        """Yields the selected rows of each part in batches: the number of the part, the rows, the hashes of their keys,
        and the hashes of all their values."""
        for number in range(len(self.parts)):
            yield from ((number, *found) for found in self.rows_of(number))

    def rows_of(self, number: int) -> Iterator[tuple[pa.Table, Hashes, Hashes]]:
        for table in self.parts[number]():
            chosen, keys = self._chosen(table)
            whole = self.key == tuple(table.column_names)
            yield chosen, keys, keys if whole else hash_rows(chosen.columns, chosen.num_rows)

    def _chosen(self, table: pa.Table) -> tuple[pa.Table, Hashes]:
        keys = key_hashes(table, self.key)
        chosen = self.selection.of(keys)
        if chosen is None or chosen.all():
            return table, keys
        return table.filter(pa.array(chosen)), keys[chosen]


def key_hashes(table: pa.Table, key: Sequence[str]) -> Hashes:
    return hash_rows([table.column(name) for name in key], table.num_rows)


class Digest:
    """The sums over the rows of one side. The order of the rows does not matter."""

    def __init__(self) -> None:
        self.counts = np.zeros(BUCKETS, np.int64)
        self._sums = np.zeros((2, BUCKETS), np.uint64)

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    def add(self, keys: Hashes, rows: Hashes) -> None:
        buckets = bucket_of(keys)
        self.counts += np.bincount(buckets, minlength=BUCKETS)
        first, second = mixed(keys + rows * _OTHER), mixed((keys ^ _OTHER) * _OTHER + rows)
        np.add.at(self._sums[0], buckets, first)
        np.add.at(self._sums[1], buckets, second)

    def unlike(self, other: Digest) -> NDArray[np.bool_]:
        """Returns the buckets in which the two differ."""
        found: NDArray[np.bool_] = (self._sums != other._sums).any(axis=0) | (self.counts != other.counts)
        return found


def bucket_of(keys: Hashes) -> Ints:
    return (keys >> _BUCKET_SHIFT).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Suspects:
    """The number of rows that differ; the hashes of the first keys of such rows; and the parts of either side that
    contain rows of these keys. `changed`: rows whose key is on both sides."""

    missing: int = 0
    extra: int = 0
    changed: int = 0
    keys: Hashes = field(default_factory=lambda: np.empty(0, np.uint64))
    source_parts: frozenset[int] = frozenset()
    destination_parts: frozenset[int] = frozenset()

    @property
    def total(self) -> int:
        return self.missing + self.extra + self.changed


def suspects(source: Fingerprints, destination: Fingerprints, wanted: int) -> Suspects:
    """Returns the rows that one side has more often than the other. All rows of their keys must be in these two arrays.
    The first `wanted` keys are to be shown."""
    both = np.concatenate([source, destination])
    signs = np.concatenate([source["count"].astype(np.int64), -destination["count"].astype(np.int64)])
    order = np.lexsort((both["row"], both["key"]))
    both, signs = both[order], signs[order]
    edges = _edges(both["key"], both["row"])
    left_over = np.add.reduceat(signs, edges) if len(edges) else np.empty(0, np.int64)
    if not left_over.any():
        return Suspects()
    keys = both["key"][edges][left_over != 0]
    left_over = left_over[left_over != 0]
    starts = _edges(keys)
    here = np.add.reduceat(np.maximum(left_over, 0), starts)
    there = np.add.reduceat(np.maximum(-left_over, 0), starts)
    changed = np.minimum(here, there)
    shown = keys[starts][:wanted]
    return Suspects(
        int((here - changed).sum()),
        int((there - changed).sum()),
        int(changed.sum()),
        shown,
        _parts_of(source, shown),
        _parts_of(destination, shown),
    )


def compact(rows: Fingerprints) -> Fingerprints:
    """Combines equal rows of one part into one, with their count."""
    order = np.lexsort((rows["row"], rows["key"]))
    rows = rows[order]
    edges = _edges(rows["key"], rows["row"], rows["part"])
    if len(edges) == len(rows):
        return rows
    kept = rows[edges]
    kept["count"] = np.add.reduceat(rows["count"], edges)
    return kept


class Sorting:
    """Files with the rows of one side whose buckets differ, split by bucket."""

    def __init__(self, folder: Path, name: str, unlike: NDArray[np.bool_], files: int) -> None:
        self._unlike = unlike
        self._count = files
        self._paths = [folder / f"{name}-{number}" for number in range(files)]
        self._open = ExitStack()
        self._files: list[IO[bytes]] = []

    def __enter__(self) -> Sorting:
        self._files = [self._open.enter_context(path.open("wb")) for path in self._paths]
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, part: int, keys: Hashes, rows: Hashes) -> None:
        buckets = bucket_of(keys)
        chosen = np.flatnonzero(self._unlike[buckets])
        if not len(chosen):
            return
        found = np.empty(len(chosen), _ROW)
        found["key"], found["row"], found["part"], found["count"] = keys[chosen], rows[chosen], part, 1
        numbers = buckets[chosen] % self._count
        for number in np.unique(numbers).tolist():
            self._files[number].write(compact(found[numbers == number]).tobytes())

    def read(self, number: int) -> Fingerprints:
        return np.fromfile(self._paths[number], _ROW)


def files_needed(source: Digest, destination: Digest, unlike: NDArray[np.bool_]) -> int:
    rows = int((source.counts + destination.counts)[unlike].sum())
    return max(1, min(FILES_AT_MOST, -(-rows // ROWS_AT_ONCE)))


def sort_out(
    source: Side,
    destination: Side,
    digests: tuple[Digest, Digest],
    wanted: int,
    read: Callable[[Callable[[], None], Callable[[], None]], None],
) -> Suspects:
    """Returns what differs between two sides whose digests differ. `read` calls both functions, possibly at the same
    time."""
    unlike = digests[0].unlike(digests[1])
    count = files_needed(*digests, unlike)
    with tempfile.TemporaryDirectory(prefix="pgetl-verify-") as name:
        here, there = (Sorting(Path(name), side, unlike, count) for side in ("source", "destination"))
        with here, there:
            read(lambda: _fill(here, source), lambda: _fill(there, destination))
        found = Suspects()
        for number in range(count):
            more = suspects(here.read(number), there.read(number), max(0, wanted - len(found.keys)))
            found = _joined(found, more)
        return found


def _fill(sorting: Sorting, side: Side) -> None:
    for part, _, keys, rows in side.rows():
        sorting.add(part, keys, rows)


def _joined(one: Suspects, other: Suspects) -> Suspects:
    return Suspects(
        one.missing + other.missing,
        one.extra + other.extra,
        one.changed + other.changed,
        np.concatenate([one.keys, other.keys]),
        one.source_parts | other.source_parts,
        one.destination_parts | other.destination_parts,
    )


def _parts_of(rows: Fingerprints, keys: Hashes) -> frozenset[int]:
    return frozenset(np.unique(rows["part"][np.isin(rows["key"], keys)]).tolist())


def _edges(*columns: NDArray[np.unsignedinteger]) -> Ints:
    """Returns the indexes at which runs of equal values begin."""
    if not len(columns[0]):
        return np.empty(0, np.int64)
    changes = np.zeros(len(columns[0]), np.bool_)
    changes[0] = True
    for column in columns:
        changes[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(changes)


def _among(keys: Hashes, known: Hashes) -> NDArray[np.bool_]:
    if not len(known):
        return np.zeros(len(keys), np.bool_)
    places = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    found: NDArray[np.bool_] = known[places] == keys
    return found


def _both(one: NDArray[np.bool_] | None, other: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return other if one is None else one & other


# -- Rows that differ, as they are shown to a user: key by key, column by column. --------------------------------------
#
# The values are those that were compared: both sides in the destination's types. A long value is shown around the first
# position at which the two differ.

SHOWN_LETTERS = 120
_ROWS_OF_A_KEY = 100

_PLAIN = re.compile(r"[\w.+-]+")


def differences(source: Side, destination: Side, found: Suspects) -> Iterator[Difference]:
    """Yields the differences. Reads again those parts that contain rows of the keys."""
    keys = np.sort(found.keys)
    here = _rows_of(source, found.source_parts, keys)
    there = _rows_of(destination, found.destination_parts, keys)
    for key in found.keys.tolist():
        yield from _of_key(here[key], there[key], source.key)


def _rows_of(side: Side, parts: Set[int], keys: Hashes) -> defaultdict[int, list[tuple[int, Row]]]:
    """Returns the rows of these keys by the hash of the key, each with its own hash."""
    found: defaultdict[int, list[tuple[int, Row]]] = defaultdict(list)
    for number in sorted(parts):
        for table, key_hashes, row_hashes in side.rows_of(number):
            for at in np.flatnonzero(np.isin(key_hashes, keys)).tolist():
                rows = found[int(key_hashes[at])]
                if len(rows) < _ROWS_OF_A_KEY:
                    rows.append((int(row_hashes[at]), _row(table, at)))
    return found


def _of_key(here: list[tuple[int, Row]], there: list[tuple[int, Row]], key: Sequence[str]) -> Iterator[Difference]:
    only_here, only_there = _less(here, there), _less(there, here)
    while only_here and only_there:
        one, other = only_here.pop(), only_there.pop()
        columns = {name: _beside(one[name], other[name]) for name in one if one[name] != other[name]}
        yield Difference("changed", _key(one, key), columns, _cut_row(one), _cut_row(other))
    kind: Kind = "missing" if only_here else "extra"
    for row in only_here or only_there:
        held = _cut_row(row)
        yield Difference(kind, _key(row, key), {}, held if only_here else None, None if only_here else held)


def _less(rows: list[tuple[int, Row]], others: list[tuple[int, Row]]) -> list[Row]:
    left = Counter(row_hash for row_hash, _ in others)
    kept = []
    for row_hash, row in rows:
        if left[row_hash]:
            left[row_hash] -= 1
        else:
            kept.append(row)
    return kept


def _key(row: Row, key: Sequence[str]) -> Row:
    return {name: _cut(row[name], 0) for name in key}


def _cut_row(row: Row) -> Row:
    return {name: _cut(value, 0) for name, value in row.items()}


def _row(table: pa.Table, at: int) -> Row:
    return {name: text_of(table.column(name)[at]) for name in table.column_names}


def text_of(value: pa.Scalar) -> str:
    """Returns the value as readable text. Different values have different texts."""
    if not value.is_valid:
        return NULL
    if pa.types.is_date(value.type) or pa.types.is_timestamp(value.type):
        return str(value.cast(pa.string()))
    return _text(value.as_py())


def _text(plain: Any) -> str:
    if plain is None:
        return NULL
    if isinstance(plain, bytes):
        try:
            return _quoted(plain.decode())
        except UnicodeDecodeError:
            return f"\\x{plain.hex()}"
    if isinstance(plain, list):
        return "[" + ", ".join(map(_text, plain)) + "]"
    return _quoted(plain) if isinstance(plain, str) else str(plain)


def _quoted(text: str) -> str:
    """Returns the text in quotes if it could be taken for something else."""
    return text if _PLAIN.fullmatch(text) and text != NULL else repr(text)


def _beside(one: str, other: str) -> tuple[str, str]:
    """Returns both texts, shortened to the same section."""
    unlike = (at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right)
    first = next(unlike, min(len(one), len(other)))
    return _cut(one, first), _cut(other, first)


def _cut(text: str, around: int) -> str:
    if len(text) <= SHOWN_LETTERS:
        return text
    begin = max(0, min(around - SHOWN_LETTERS // 3, len(text) - SHOWN_LETTERS))
    shown = text[begin : begin + SHOWN_LETTERS]
    return f"{'…' if begin else ''}{shown}{'…' if begin + SHOWN_LETTERS < len(text) else ''} ({len(text):,} letters)"
