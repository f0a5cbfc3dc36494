"""Writing and reading the table's Parquet files, a row group at a time.

A file is whole or it is not there. Rows are gathered until they are half a group at least, and written in groups of
bounded size, so that a writer holds one group, whatever the file's size; a reader holds one as well. A file ends when
it has reached its target size, and the next one begins.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from airflow_provider_pgetl.engine.destinations.delta.statistics import (
    Bounds,
    Statistics,
    indexed_columns,
    nan_columns,
)
from airflow_provider_pgetl.engine.destinations.delta.storage import Place
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError

GROUP_ROWS = 128 << 10
GROUP_BYTES = 16 << 20
_SAMPLE_ROWS = 4096
_WRITING = {
    "compression": "zstd",
    "compression_level": 1,
    "write_statistics": True,
    "store_schema": False,
    "data_page_version": "1.0",
}


@dataclass(frozen=True, slots=True)
class Written:
    """A file that is complete, as the log is to speak of it. `bounds` are for who has just written it."""

    path: str
    size: int
    rows: int
    stats: str
    bounds: Mapping[str, Bounds] = field(default_factory=dict, compare=False)

    def add(self, *, data_change: bool = True) -> AddAction:
        return AddAction(self.path, self.size, {}, int(time.time() * 1000), data_change, self.stats)

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "size": self.size, "rows": self.rows, "stats": self.stats}


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table's rows lie in files. `required`: the columns that must not be null. The last columns of the schema
    may be others' (`Shape.layout_in`), of which only rows that are there already can have values."""

    schema: pa.Schema
    key: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    target_bytes: int = 128 << 20

    def widened(self, rows: pa.Table) -> pa.Table:
        """New rows, with nulls in the columns that they lack."""
        for one in self.lacking(rows):
            rows = rows.append_column(one, pa.nulls(rows.num_rows, one.type))
        return rows

    def lacking(self, rows: pa.Table) -> list[pa.Field]:
        return list(self.schema)[rows.num_columns :]


class FilesWriter:
    """Rows in, files out. `name` gives each file its path. To be closed, or else abandoned: then nothing is left."""

    def __init__(self, place: Place, layout: Layout, name: Callable[[], str]) -> None:
        self._place = place
        self._layout = layout
        self._name = name
        self._file: _OpenFile | None = None
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self._bytes = 0
        self.written: list[Written] = []

    def write(self, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if 2 * self._rows >= GROUP_ROWS or 2 * self._bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> list[Written]:
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
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._rows, self._bytes = [], 0, 0
        if self._file is None:
            self._file = _OpenFile(self._place, self._layout, self._name(), rows)
        self._file.write(rows)
        if self._file.size >= self._layout.target_bytes:
            self._finish()

    def _finish(self) -> None:
        if self._file is not None:
            self.written.append(self._file.close())
            self._file = None


class _OpenFile:
    """`first` are some of the rows to come."""

    def __init__(self, place: Place, layout: Layout, path: str, first: pa.Table) -> None:
        self.path = path
        self._layout = layout
        self._place = place
        self._strange: set[str] = set()
        with place.errors(path), contextlib.ExitStack() as stack:
            self._stream = stack.enter_context(place.writing(path))
            self._writer = pq.ParquetWriter(self._stream, layout.schema, use_dictionary=repetitive(first), **_WRITING)
            self._stack = stack.pop_all()

    @property
    def size(self) -> int:
        return int(self._stream.tell())

    def write(self, rows: pa.Table) -> None:
        for name in self._layout.required:
            if rows.column(name).null_count:
                raise PgetlError(ErrorKind.CONSTRAINT, f"Column {name} is declared not null, but a null has come.")
        self._strange |= nan_columns(rows)
        groups = max(-(-rows.num_rows // GROUP_ROWS), -(-rows.nbytes // GROUP_BYTES), 1)
        with self._place.errors(self.path):
            self._writer.write_table(rows, row_group_size=max(-(-rows.num_rows // groups), 1))

    def close(self) -> Written:
        with self._place.errors(self.path):
            self._writer.close()
            size = self.size
            self._stack.close()
        columns = indexed_columns(self._layout.schema, self._layout.key)
        stats = Statistics(self._writer.writer.metadata, columns, self._strange)
        return Written(self.path, size, stats.rows, stats.as_json(), stats.bounds)

    def abandon(self) -> None:
        """Have `writing` see a failure: it takes the file away. Parquet's writer must be closed before its stream. A
        store that is in trouble now was so before, or else it does not matter: what counts is why this is abandoned."""
        with contextlib.suppress(_Abandoned, PgetlError), self._place.errors(self.path), self._stack:
            self._writer.close()
            raise _Abandoned


def repetitive(rows: pa.Table) -> list[str]:
    """The columns that a dictionary makes smaller, by a sample; to make one in vain takes longer than all the rest."""
    each = rows.num_rows // _SAMPLE_ROWS
    sample = rows if each <= 1 else rows.take(pa.array(range(0, rows.num_rows, each)))
    names = []
    for column in rows.schema:
        if pa.types.is_list(column.type):
            names.append(f"{column.name}.list.element")
        elif pa.types.is_nested(column.type):
            continue  # of others alone
        elif 2 * len(sample.column(column.name).unique()) <= sample.num_rows:
            names.append(column.name)
    return names


class _Abandoned(Exception):
    """The file is wanted no more."""


class FileReader:
    """One file, by row groups, in the layout's types whoever wrote it."""

    def __init__(self, place: Place, path: str, schema: pa.Schema) -> None:
        self._schema = schema
        self._what = f"{path}, a file of the table at {place.uri},"
        self._errors = partial(place.errors, path)
        with self._errors(), _missing(place, path), _garbled(self._what):
            self._source = place.files.open_input_file(path)
            self._file = pq.ParquetFile(self._source, pre_buffer=place.local is None)

    def __enter__(self) -> FileReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._source.close()

    @property
    def groups(self) -> range:
        return range(self._file.num_row_groups)

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """One group. A column that the file lacks, because the table got it later, is null throughout."""
        names = list(self._schema.names if columns is None else columns)
        there = set(self._file.schema_arrow.names)
        here = [name for name in names if name in there]
        with self._errors(), _garbled(self._what):
            found = self._file.read_row_group(group, columns=here, use_threads=False)
        wanted = pa.schema([self._schema.field(name) for name in names])
        if found.schema.equals(wanted):
            return found
        with _garbled(self._what):
            arrays = [
                _cast(found.column(one.name), one.type) if one.name in there else pa.nulls(len(found), one.type)
                for one in wanted
            ]
        return pa.Table.from_arrays(arrays, schema=wanted)


@contextlib.contextmanager
def _missing(place: Place, path: str) -> Iterator[None]:
    """Where nothing is there at all, not even the log, it is the store that is away."""
    try:
        yield
    except FileNotFoundError as error:
        if not place.list("_delta_log"):
            raise
        message = f"{path}, a file of the table at {place.uri}, is not there any more."
        raise PgetlError(ErrorKind.DAMAGED, message) from error


@contextlib.contextmanager
def _garbled(what: str) -> Iterator[None]:
    """Where others have written something else than the table's columns, or nothing that can be read."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        message = f"{what} cannot be read as the table's: {str(error).splitlines()[0].rstrip('.')}."
        raise PgetlError(ErrorKind.DAMAGED, message) from error


def _cast(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    return column if column.type == wanted else column.cast(wanted)


def new_name(kind: str) -> Callable[[], str]:
    """Names that were never used before."""
    return lambda: f"{kind}-{uuid.uuid4().hex}.parquet"
