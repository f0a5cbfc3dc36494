"""Reads the current rows of a table with a history (`mode = "history"`), to compare them with the source.

    files ─▶ entries, spread over buckets by the hash of their key ─▶ of each bucket, the last entry of each key

A row is current if the last entry of its key is no delete, and comes after the last truncate of the table. Entries are
spread over temporary files, because the entries of one key may be in any file of the table; each bucket then fits into
memory, unless a few keys have very many entries. A value that an update lists as unchanged is that of the entry before,
or, where the update has moved the row to another key, of the last entry of the former key.

A column that was added or renamed after the copy has no values in the entries from before, so it is left out as long as
the table has a file that lacks it and is not void as a whole.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.changes.hashing import Hashes, hash_rows
from airflow_provider_pgetl.engine.destinations.delta.files.data_files import FileReader
from airflow_provider_pgetl.engine.destinations.delta.files.deletion_vectors import read_marks
from airflow_provider_pgetl.engine.destinations.delta.log.snapshot import LiveFile
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import TableLog
from airflow_provider_pgetl.engine.destinations.delta.shape import COMMIT_LSN, KIND, ORDINAL, UNCHANGED, DeltaShape
from airflow_provider_pgetl.engine.destinations.protocol import Part
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.runtime.processes import private_folder

_BUCKET_BYTES = 16 << 20  # of compressed files
_BUCKETS_AT_MOST = 128
_ROWS_AT_ONCE = 64 << 10
_KEY_HASH, _DELETED = "_pgetl_key_hash", "_pgetl_deleted"

Place = tuple[int, int]
"""The commit LSN and the ordinal of an entry."""
Ints = NDArray[np.int64]
_Read = Callable[[int], "Entries"]


@dataclass(slots=True)
class HistorySnapshot:
    """A `TableSnapshot` of the current rows. Its temporary files are removed by `close`."""

    log: TableLog
    shape: DeltaShape
    position: Boundary
    files: Sequence[LiveFile]
    _spread: Spread | None = None

    def held(self, texts: pa.Table) -> pa.Table:
        left_out = set() if self._spread is None else self._spread.left_out
        there = set(texts.column_names) - left_out
        columns = [one for one in self.shape.columns if one.name in there]
        arrays = [one.decode(texts.column(one.name).combine_chunks()) for one in columns]
        return pa.Table.from_arrays(arrays, schema=pa.schema([self.shape.rows.field(one.name) for one in columns]))

    def parts(self, keys: pa.Table | None = None) -> Sequence[Part]:
        self.close()
        wanted = None if keys is None else np.unique(_key_hashes(self.held(keys), self.shape.key))
        self._spread = spread(self.log, self.shape, self.files)
        if unknown := self._spread.left_out.intersection(self.shape.key):
            message = (
                f"{', '.join(sorted(unknown))} of the key has no values in entries from before it was added or renamed."
            )
            raise PgetlError(ErrorKind.USAGE, message, remedy="Copy the table again.", table=str(self.shape.table))
        return [self._part(self._spread, bucket, wanted) for bucket in range(self._spread.buckets)]

    def _part(self, entries: Spread, bucket: int, wanted: Hashes | None) -> Part:
        names = [name for name in self.shape.rows.names if name not in entries.left_out]
        return lambda: entries.current(bucket, names, wanted)

    def close(self) -> None:
        if self._spread is not None:
            self._spread.close()
            self._spread = None


def _key_hashes(rows: pa.Table, key: Sequence[str]) -> Hashes:
    return hash_rows([rows.column(name) for name in key], rows.num_rows)


# -- Entries in temporary files. ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Spread:
    """The entries of a table in files, by the hash of their key. `void`: the place of the last truncate; entries up to
    there do not count. `moves`: for an update that moved a row and lists unchanged values, by the hash of its new key
    and its place, the hash of its former key."""

    folder: Path
    buckets: int
    void: Place = (0, -2)
    moves: dict[tuple[int, Place], int] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)

    def path(self, bucket: int) -> Path:
        return self.folder / str(bucket)

    def of(self, keys: Hashes) -> Ints:
        return (keys % np.uint64(self.buckets)).astype(np.int64)

    def read(self, bucket: int) -> Entries:
        with pa.OSFile(str(self.path(bucket))) as file, pa.ipc.open_stream(file) as reader:
            return Entries.sorted(reader.read_all(), self.void)

    def current(self, bucket: int, names: Sequence[str], wanted: Hashes | None) -> Iterator[pa.Table]:
        """Yields the current rows of the bucket, with these columns; with `wanted`, only those of these keys, by their
        hashes. The entries of other keys may be needed all the same, for values that were not sent again."""
        read = lru_cache(maxsize=2)(self.read)
        entries = self.read(bucket)
        rows = entries.last()
        if wanted is not None:
            rows = rows[np.isin(entries.keys[rows], wanted)]
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = rows[start : start + _ROWS_AT_ONCE]
            lacking = entries.lacking(some)
            columns = [self._values(entries, some, lacking.get(name, ()), name, read) for name in names]
            yield pa.table(dict(zip(names, columns, strict=True)), schema=_schema_of(entries.rows, names))

    def _values(
        self, entries: Entries, rows: Ints, lacking: Sequence[int], name: str, read: _Read
    ) -> pa.Array | pa.ChunkedArray:
        """Returns a column of these rows. Those that are `lacking` take their value from earlier entries."""
        column, places = entries.rows.column(name), rows.copy()
        elsewhere: dict[int, pa.Scalar] = {}
        for at in lacking:
            there, row = self._known(entries, int(rows[at]), name, read)
            if there is entries:
                places[at] = row
            else:
                elsewhere[at] = there.rows.column(name)[row]
        found = column.take(pa.array(places))
        if not elsewhere:
            return found
        mask = np.zeros(len(rows), np.bool_)
        mask[list(elsewhere)] = True
        return pc.replace_with_mask(
            found, pa.array(mask), pa.array([elsewhere[at] for at in sorted(elsewhere)], found.type)
        )

    def _known(self, entries: Entries, row: int, name: str, read: _Read) -> tuple[Entries, int]:
        """Returns the latest entry up to this one that has a value of the column, and the bucket's entries."""
        while name in (entries.rows.column(UNCHANGED)[row].as_py() or ()):
            if row and entries.keys[row - 1] == entries.keys[row] and not entries.deleted[row - 1]:
                row -= 1
                continue
            former = self.moves.get((int(entries.keys[row]), entries.place(row)))
            place = entries.place(row)
            if former is not None:
                entries = read(int(self.of(np.array([former], np.uint64))[0]))
                before = entries.before(former, place)
                if before is not None:
                    row = before
                    continue
            message = (
                f"The history lacks the value of {name} in an entry at {Boundary(place[0])}, and has no entry before."
            )
            raise PgetlError(ErrorKind.SCHEMA, message, remedy="Copy the table again.")
        return entries, row

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def spread(log: TableLog, shape: DeltaShape, files: Sequence[LiveFile]) -> Spread:
    """Spreads the entries over files."""
    buckets = max(1, min(_BUCKETS_AT_MOST, sum(file.size for file in files) // _BUCKET_BYTES))
    found = Spread(private_folder("history"), int(buckets))
    try:
        with ExitStack() as stack:
            spreading = _Spreading(found, shape, stack)
            for file in files:
                spreading.add(log, file)
            spreading.finish()
    except BaseException:
        found.close()
        raise
    return found


class _Spreading:
    def __init__(self, found: Spread, shape: DeltaShape, stack: ExitStack) -> None:
        self._found = found
        self._shape = shape
        self._lacking: list[tuple[Place, frozenset[str]]] = []
        kept = [shape.stored.field(name) for name in (COMMIT_LSN, ORDINAL, UNCHANGED, *shape.rows.names)]
        self._schema = pa.schema([*kept, pa.field(_KEY_HASH, pa.uint64()), pa.field(_DELETED, pa.bool_())])
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._writers = [
            stack.enter_context(
                pa.ipc.new_stream(
                    stack.enter_context(pa.OSFile(str(found.path(one)), "wb")), self._schema, options=options
                )
            )
            for one in range(found.buckets)
        ]

    def add(self, log: TableLog, file: LiveFile) -> None:
        latest: Place | None = None
        before: pa.Table | None = None
        with FileReader(log.place, file.location, self._shape.stored) as reader:
            for _, rows in reader.live_batches(read_marks(log.place, file.vector)):
                latest = max(filter(None, (latest, self._add(rows, before))), default=None)
                before = rows.slice(rows.num_rows - 1)
            lacking = reader.lacking(self._shape.rows.names)
        if latest is not None and lacking:
            self._lacking.append((latest, lacking))

    def _add(self, rows: pa.Table, before: pa.Table | None) -> Place | None:
        """Adds entries; `before` is the one before them in the file. Returns the latest place of an entry of a row."""
        truncates = pc.equal(rows.column(KIND), "truncate")
        if pc.any(truncates).as_py():
            self._found.void = max(self._found.void, _latest(rows.filter(truncates)))
            rows = rows.filter(pc.invert(truncates))
            before = None
        if not rows.num_rows:
            return None
        keys = _key_hashes(rows, self._shape.key)
        self._note_moves(rows if before is None else pa.concat_tables([before, rows]))
        extended = rows.append_column(_KEY_HASH, pa.array(keys))
        extended = extended.append_column(_DELETED, pc.equal(rows.column(KIND), "delete")).select(self._schema.names)
        buckets = self._found.of(keys)
        for bucket in np.unique(buckets).tolist():
            self._writers[bucket].write_table(extended.filter(pa.array(buckets == bucket)).cast(self._schema))
        return _latest(rows)

    def _note_moves(self, rows: pa.Table) -> None:
        """Notes updates that list unchanged values and directly follow the delete of the former key."""
        partial = pc.is_valid(rows.column(UNCHANGED)).to_numpy(zero_copy_only=False)
        if not partial.any():
            return
        lsns, ordinals = rows.column(COMMIT_LSN).to_numpy(), rows.column(ORDINAL).to_numpy()
        deleted = pc.equal(rows.column(KIND), "delete").to_numpy(zero_copy_only=False)
        moved = partial[1:] & deleted[:-1] & (lsns[1:] == lsns[:-1]) & (ordinals[1:] == ordinals[:-1])
        if not moved.any():
            return
        keys = _key_hashes(rows, self._shape.key)
        for at in (np.flatnonzero(moved) + 1).tolist():
            self._found.moves[int(keys[at]), (int(lsns[at]), int(ordinals[at]))] = int(keys[at - 1])

    def finish(self) -> None:
        for latest, lacking in self._lacking:
            if latest > self._found.void:
                self._found.left_out |= lacking


def _latest(rows: pa.Table) -> Place:
    lsns, ordinals = rows.column(COMMIT_LSN).to_numpy(), rows.column(ORDINAL).to_numpy()
    lsn = lsns.max()
    return int(lsn), int(ordinals[lsns == lsn].max())


# -- The entries of one bucket. ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries in the order of their keys' hashes, and of each key in the order in which they were made."""

    rows: pa.Table
    keys: Hashes
    lsns: Ints
    ordinals: Ints
    deleted: NDArray[np.bool_]

    @classmethod
    def sorted(cls, rows: pa.Table, void: Place) -> Entries:
        """Leaves out entries that are void. At one place, the delete of a row comes before its update."""
        rows = rows.combine_chunks()
        lsns, ordinals = rows.column(COMMIT_LSN).to_numpy(), rows.column(ORDINAL).to_numpy()
        keys = rows.column(_KEY_HASH).to_numpy()
        deleted = rows.column(_DELETED).to_numpy(zero_copy_only=False).astype(np.bool_)
        order = np.lexsort((~deleted, ordinals, lsns, keys))
        valid = (lsns > void[0]) | ((lsns == void[0]) & (ordinals > void[1]))
        order = order[valid[order]]
        return cls(rows.take(pa.array(order)), keys[order], lsns[order], ordinals[order], deleted[order])

    def last(self) -> Ints:
        """Returns the last entry of each key, unless it is a delete."""
        if not len(self.keys):
            return np.empty(0, np.int64)
        ends = np.append(self.keys[1:] != self.keys[:-1], True)
        return np.flatnonzero(ends & ~self.deleted)

    def place(self, row: int) -> Place:
        return int(self.lsns[row]), int(self.ordinals[row])

    def before(self, key: int, place: Place) -> int | None:
        """Returns the last entry of the key before a place that is no delete."""
        same = np.flatnonzero(self.keys == np.uint64(key)).tolist()
        rows = [row for row in same if self.place(row) < place]
        return rows[-1] if rows and not self.deleted[rows[-1]] else None

    def lacking(self, rows: Ints) -> Mapping[str, Sequence[int]]:
        """Returns, for each column, which of these entries have no value of it, because it was not sent again."""
        listed = self.rows.column(UNCHANGED).take(pa.array(rows))
        found: defaultdict[str, list[int]] = defaultdict(list)
        if listed.null_count < len(listed):
            for at, names in enumerate(listed.to_pylist()):
                for name in names or ():
                    found[name].append(at)
        return found


def _schema_of(rows: pa.Table, names: Sequence[str]) -> pa.Schema:
    return pa.schema([rows.schema.field(name) for name in names])
