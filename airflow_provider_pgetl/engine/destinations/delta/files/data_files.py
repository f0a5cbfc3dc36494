"""Writes and reads the table's Parquet files in pieces of bounded size.

A file is complete or it does not exist. Rows are gathered until they fill at least half a row group, and are written in
row groups of bounded size, so that a writer holds one group, whatever the file's size. When a file has reached its
target size, the next one is begun. A reader holds a bounded piece of a file, whichever writer made it: see
`FileReader`.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.destinations.delta.files.deletion_vectors import Marks
from airflow_provider_pgetl.engine.destinations.delta.files.keys import RowGroups, in_key_order, taken
from airflow_provider_pgetl.engine.destinations.delta.log.actions import (
    Add,
    Bounds,
    Statistics,
    indexed_columns,
    nan_columns,
)
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.runtime.processes import trim

Ints = NDArray[np.int64]

GROUP_ROWS = 128 << 10
GROUP_BYTES = 16 << 20
BATCH_BYTES = 8 << 20
READ_BYTES = 512 << 10
READ_ROWS = 128 << 10
_FAR_OFF = 4
PROBED_ROWS = 64
_BUFFERS_BYTES, _LEAST_BUFFER, _MOST_BUFFER = 8 << 20, 16 << 10, 1 << 20
_SAMPLE_ROWS = 4096
_SAMPLE_BYTES = 4 << 20
_PAGE_BYTES = 1 << 20
_WRITING = {
    "compression": "zstd",
    "compression_level": 1,
    "write_statistics": True,
    "store_schema": False,
    "data_page_version": "1.0",
}


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A complete file, with what the log records of it. `bounds` serve the process that has just written it."""

    path: str
    size: int
    rows: int
    stats: str
    bounds: Mapping[str, Bounds] = field(default_factory=dict, compare=False)

    def add(self, *, data_change: bool = True) -> Add:
        return Add(self.path, self.size, self.stats, data_change=data_change)

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "rows": self.rows, "stats": self.stats}


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table's rows are stored in files. `required`: the columns that must not be null; `order`: those by which
    rows are sorted, if any. The last columns of the schema may have been added by others (`DeltaShape.layout_in`); only
    rows that exist already can have values in these."""

    schema: pa.Schema
    key: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    target_bytes: int = 128 << 20
    order: tuple[str, ...] = ()

    def widened(self, rows: pa.Table) -> pa.Table:
        """Adds the columns that new rows lack, filled with nulls."""
        for one in self.lacking(rows):
            rows = rows.append_column(one, pa.nulls(rows.num_rows, one.type))
        return rows

    def lacking(self, rows: pa.Table) -> list[pa.Field]:
        return list(self.schema)[rows.num_columns :]


class FilesWriter:
    """Writes rows to files. `name` returns the path of each new file. A writer must be closed, or abandoned, which
    deletes its files. `sorts`: rows are new and come in any order; each row group is sorted."""

    def __init__(self, place: TableFolder, layout: Layout, name: Callable[[], str], *, sorts: bool = False) -> None:
        self._order = layout.order if sorts else ()
        self._place = place
        self._layout = layout
        self._name = name
        self._file: _OpenFile | None = None
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0
        self.written: list[WrittenFile] = []

    def write(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if 2 * self._rows >= GROUP_ROWS or 2 * self._bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> list[WrittenFile]:
        self._flush()
        self._finish()
        return self.written

    def abandon(self) -> None:
        if self._file is not None:
            self._file.abandon()
            self._file = None
        for one in self.written:
            self._place.delete(one.path)
        self.written = []

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = in_key_order(pa.concat_tables(self._waiting), self._order)
        self._waiting, self._rows, self._bytes = [], 0, 0
        if self._file is None:
            self._file = _OpenFile(self._place, self._layout, self._name(), rows)
        self._file.write(rows)
        del rows
        trim()
        if self._file.size >= self._layout.target_bytes:
            self._finish()

    def _finish(self) -> None:
        if self._file is not None:
            self.written.append(self._file.close())
            self._file = None


class _OpenFile:
    """A file being written. `first` are some of its rows, from which its encoding is chosen."""

    def __init__(self, place: TableFolder, layout: Layout, path: str, first: pa.Table) -> None:
        self.path = path
        self._layout = layout
        self._place = place
        self._strange: set[str] = set()
        with place.errors(path), contextlib.ExitStack() as stack:
            self._stream = stack.enter_context(place.writing(path))
            self._writer = pq.ParquetWriter(
                self._stream,
                layout.schema,
                use_dictionary=repetitive(first),
                write_batch_size=_values_at_once(first),
                **_WRITING,
            )
            self._stack = stack.pop_all()

    @property
    def size(self) -> int:
        return int(self._stream.tell())

    def write(self, rows: pa.Table) -> None:
        for name in self._layout.required:
            if rows.column(name).null_count:
                raise PgetlError(ErrorKind.CONSTRAINT, f"Column {name} is declared not null, but a null has come.")
        self._strange |= nan_columns(rows)
        with self._place.errors(self.path):
            for group in _groups(rows):
                self._writer.write_table(group, row_group_size=max(group.num_rows, 1))

    def close(self) -> WrittenFile:
        with self._place.errors(self.path):
            self._writer.close()
            size = self.size
            self._stack.close()
        columns = indexed_columns(self._layout.schema, self._layout.key)
        stats = Statistics(self._writer.writer.metadata, columns, self._strange)
        return WrittenFile(self.path, size, stats.rows, stats.as_json(), stats.bounds)

    def abandon(self) -> None:
        """Makes `writing` fail, so that it deletes the file. The Parquet writer must be closed before its stream.
        Errors of the store are suppressed: what counts is the error for which the file is abandoned."""
        with contextlib.suppress(_Abandoned, PgetlError), self._place.errors(self.path), self._stack:
            self._writer.close()
            raise _Abandoned


def _groups(rows: pa.Table) -> Iterator[pa.Table]:
    """Divides rows into even groups. If row sizes differ, groups that are still too large are divided further."""
    number = max(-(-rows.num_rows // GROUP_ROWS), -(-rows.nbytes // GROUP_BYTES), 1)
    if number == 1 or rows.num_rows <= 1:
        yield rows
        return
    each = -(-rows.num_rows // number)
    for first in range(0, rows.num_rows, each):
        yield from _groups(rows.slice(first, each))


def _values_at_once(rows: pa.Table) -> int:
    """Returns how many values of a column to write between checks whether a page is full. It is so small that no page
    becomes far larger than intended, because a reader must hold a whole page."""
    largest = max((_nbytes_each(rows.column(name)) for name in rows.column_names), default=0)
    return int(min(max(_PAGE_BYTES // max(largest, 1), 1), 1024))


def _nbytes_each(column: pa.ChunkedArray) -> int:
    return int(column.nbytes) // max(len(column), 1)


def repetitive(rows: pa.Table) -> list[str]:
    """Returns the columns that a dictionary makes smaller, judged by a sample. A dictionary made in vain takes longer
    than all the rest of writing."""
    names = []
    for column in rows.schema:
        if pa.types.is_list(column.type):
            names.append(f"{column.name}.list.element")
        elif pa.types.is_nested(column.type):
            continue  # only columns added by others are of such types
        elif _repeats(rows.select([column.name])):
            names.append(column.name)
    return names


def _repeats(rows: pa.Table) -> bool:
    """Whether values repeat in `rows`, which have a single column."""
    count = min(_SAMPLE_ROWS, _SAMPLE_BYTES // max(_nbytes_each(rows.column(0)), 1))
    each = rows.num_rows // max(count, 2)
    sample = rows if each <= 1 else taken(rows, np.arange(0, rows.num_rows, each))
    return bool(2 * len(sample.column(0).unique()) <= sample.num_rows)


class _Abandoned(Exception):
    """Makes `TableFolder.writing` delete the file."""


class FileReader:
    """Reads one file's rows, in the layout's types whichever writer made the file, in pieces that are bounded in bytes.

    Row groups are the writer's choice and may be of any size, so none is read whole. Columns are decoded `READ_BYTES`
    at a time, from a buffer for each column if a row group is large, and the decoded rows are joined into tables of
    about `BATCH_BYTES`. The number of rows to read at a time is estimated from the footer, and corrected by what was
    decoded: the footer does not tell how value sizes are distributed, nor how long the values of a dictionary are.
    """

    def __init__(self, place: TableFolder, path: str, schema: pa.Schema, *, buffers: int = _BUFFERS_BYTES) -> None:
        """`buffers`: how many bytes of large row groups to read ahead; fewer if several files are read by turns."""
        self._buffers = buffers
        self._schema = schema
        self._what = f"{path}, a file of the table at {place.uri},"
        self._errors = partial(place.errors, path)
        self._is_remote = place.local is None
        with self._errors(), _missing(place, path), _garbled(self._what):
            self._source = place.files.open_input_file(path)
            self._whole = pq.ParquetFile(self._source, pre_buffer=self._is_remote)
            self._footer = self._whole.metadata
            width = max(self._footer.num_columns, 1)
            buffer = min(max(buffers // width, _LEAST_BUFFER), _MOST_BUFFER)
            self._buffered = pq.ParquetFile(self._source, metadata=self._footer, buffer_size=buffer, pre_buffer=False)
            self.groups = RowGroups(self._footer, self._whole.schema_arrow)

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._buffered.close()
        self._whole.close()
        self._source.close()

    @property
    def rows(self) -> int:
        return int(self._footer.num_rows)

    def lacking(self, names: Iterable[str]) -> frozenset[str]:
        """Returns those of the columns that the file does not have."""
        return frozenset(names).difference(self._whole.schema_arrow.names)

    def batches(
        self, columns: Sequence[str] | None = None, groups: Iterable[int] | None = None, size: int | None = None
    ) -> Iterator[tuple[int, pa.Table]]:
        """Yields the file's rows in their order, each table with the number of its first row in the file, from 0. A
        column that the file lacks, because it was added to the table later, is null throughout. `groups`: only these
        row groups, in rising order. `size`: the approximate size of the tables in bytes; the default is
        `BATCH_BYTES`."""
        most = BATCH_BYTES if size is None else size
        names = list(self._schema.names if columns is None else columns)
        held: list[pa.Table] = []
        first = end = gathered = 0
        for at, rows in self._pieces(names, groups):
            if held and (at != end or gathered >= most):
                yield first, pa.concat_tables(held)
                held, gathered = [], 0
            first = first if held else at
            held.append(rows)
            end, gathered = at + rows.num_rows, gathered + rows.nbytes
        if held:
            yield first, pa.concat_tables(held)

    def live_batches(
        self,
        marks: Marks,
        columns: Sequence[str] | None = None,
        groups: Iterable[int] | None = None,
        size: int | None = None,
    ) -> Iterator[tuple[Ints, pa.Table]]:
        """Yields the rows that are not deleted, each table with the numbers of its rows in the file, rising."""
        for first, rows in self.batches(columns, groups, size):
            numbers = np.arange(first, first + rows.num_rows)
            deleted = marks.within(first, rows.num_rows)
            if len(deleted):
                numbers = np.delete(numbers, deleted)
            if len(numbers):
                yield numbers, taken(rows, numbers - first) if len(deleted) else rows

    def groups_with(self, rows: Ints) -> list[int]:
        """Returns the row groups that contain any of these rows, given by rising numbers."""
        return [int(one) for one in np.unique(np.searchsorted(self.groups.starts[1:], rows, "right"))]

    def _pieces(self, names: Sequence[str], groups: Iterable[int] | None) -> Iterator[tuple[int, pa.Table]]:
        """Yields small pieces, each with the number of its first row."""
        wanted = pa.schema([self._schema.field(name) for name in names])
        there = set(self._whole.schema_arrow.names)
        here = [name for name in names if name in there]
        for group in range(len(self.groups)) if groups is None else groups:
            at = int(self.groups.starts[group])
            for rows in self._group(group, here):
                yield at, self._as_wanted(rows, wanted)
                at += rows.num_rows

    def _group(self, group: int, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields a row group. If rows turn out to be larger than estimated, the group is read anew from its beginning,
        with fewer rows at a time, and rows that were yielded are skipped."""
        done, total = 0, self._footer.row_group(group).num_rows
        at_once, is_known = self._estimated(group, names)
        while done < total:
            for rows in self._read(group, names, at_once if is_known else min(at_once, PROBED_ROWS), done):
                yield rows
                done += rows.num_rows
                if not is_known or (rows.nbytes > _FAR_OFF * READ_BYTES and rows.num_rows > 1):
                    at_once, is_known = min(at_once, _fitting(rows.num_rows, rows.nbytes)), True
                    break

    def _estimated(self, group: int, names: Sequence[str]) -> tuple[int, bool]:
        """Returns how many rows to read at once, and whether it is certain that rows are not far larger than estimated.
        It is uncertain for strings in a dictionary, which has each string once, however many rows have it."""
        about, wanted = self._footer.row_group(group), set(names)
        size, is_known = 0, True
        for chunk in map(about.column, range(about.num_columns)):
            if chunk.path_in_schema.split(".", 1)[0] in wanted or chunk.path_in_schema in wanted:
                size += chunk.total_uncompressed_size
                is_known = is_known and not (chunk.has_dictionary_page and chunk.physical_type == "BYTE_ARRAY")
        return _fitting(about.num_rows, size), is_known

    def _read(self, group: int, names: Sequence[str], at_once: int, skipped: int) -> Iterator[pa.RecordBatch]:
        about = self._footer.row_group(group)
        size = sum(about.column(at).total_compressed_size for at in range(about.num_columns))
        is_large = size > 2 * min(BATCH_BYTES, self._buffers)
        file = self._buffered if is_large or not self._is_remote else self._whole
        batches = file.iter_batches(at_once, row_groups=[group], columns=list(names), use_threads=False)
        while True:
            with self._errors(), _garbled(self._what):
                rows = next(batches, None)
            if rows is None:
                return
            if skipped < rows.num_rows:
                yield rows.slice(skipped)
            skipped = max(0, skipped - rows.num_rows)

    def _as_wanted(self, found: pa.RecordBatch, wanted: pa.Schema) -> pa.Table:
        there = set(found.schema.names)
        with _garbled(self._what):
            arrays = [
                _cast(found.column(one.name), one.type) if one.name in there else pa.nulls(found.num_rows, one.type)
                for one in wanted
            ]
        return pa.Table.from_arrays(arrays, schema=wanted)


def _fitting(rows: int, size: int) -> int:
    """Returns how many rows amount to `READ_BYTES`, if `rows` rows have `size` bytes."""
    return min(max(READ_BYTES * rows // max(size, 1), 1), READ_ROWS)


@contextlib.contextmanager
def _missing(place: TableFolder, path: str) -> Iterator[None]:
    """Turns a missing file into an error of the table, unless the log is missing too: then the store is unavailable."""
    try:
        yield
    except FileNotFoundError as error:
        if not place.list("_delta_log"):
            raise
        message = f"{path}, a file of the table at {place.uri}, is not there any more."
        raise PgetlError(ErrorKind.DAMAGED, message) from error


@contextlib.contextmanager
def _garbled(what: str) -> Iterator[None]:
    """Turns errors of decoding into an error of the table: others have written a file that cannot be read, or not with
    the table's columns."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        message = f"{what} cannot be read as the table's: {str(error).splitlines()[0].rstrip('.')}."
        raise PgetlError(ErrorKind.DAMAGED, message) from error


def _cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    return column if column.type == wanted else column.cast(wanted)


def new_name(kind: str) -> Callable[[], str]:
    """Returns a function that returns a new, unique name at each call."""
    return lambda: f"{kind}-{uuid.uuid4().hex}.parquet"
