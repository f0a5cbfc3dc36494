"""Reads a table at one version of its log, file by file, to compare it with the source. (`history_reading` reads one
that keeps a history.)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.delta.files.data_files import FileReader
from airflow_provider_pgetl.engine.destinations.delta.files.deletion_vectors import read_marks
from airflow_provider_pgetl.engine.destinations.delta.files.keys import Lookup
from airflow_provider_pgetl.engine.destinations.delta.history_reading import HistorySnapshot
from airflow_provider_pgetl.engine.destinations.delta.log.snapshot import LiveFile
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import TableLog
from airflow_provider_pgetl.engine.destinations.delta.shape import DeltaShape
from airflow_provider_pgetl.engine.destinations.protocol import Part
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary

_KEYLESS = "Give the source's table a primary key, or a replica identity by index."


@dataclass(frozen=True, slots=True)
class DeltaSnapshot:
    """A `TableSnapshot`: the files of one version of the table's log."""

    log: TableLog
    shape: DeltaShape
    position: Boundary
    files: Sequence[LiveFile]

    def held(self, texts: pa.Table) -> pa.Table:
        columns = [one for one in self.shape.columns if one.name in set(texts.column_names)]
        arrays = [one.decode(texts.column(one.name).combine_chunks()) for one in columns]
        return pa.Table.from_arrays(arrays, schema=pa.schema([self.shape.rows.field(one.name) for one in columns]))

    def parts(self, keys: pa.Table | None = None) -> Sequence[Part]:
        files = self.files
        if keys is not None and keys.num_rows:
            held = self.held(keys)
            lookup, fields = Lookup(held), list(held.schema)
            files = [file for file in files if lookup.within(file.bounds(fields)) is not None]
        return [self._part(file) for file in files]

    def _part(self, file: LiveFile) -> Part:
        return lambda: self._read(file)

    def _read(self, file: LiveFile) -> Iterator[pa.Table]:
        marks = read_marks(self.log.place, file.vector)
        with FileReader(self.log.place, file.location, self.shape.rows) as reader:
            for _, rows in reader.live_batches(marks):
                yield rows


def snapshot(log: TableLog, shape: DeltaShape, position: Boundary | None) -> DeltaSnapshot | HistorySnapshot:
    """Returns a snapshot of the table. `log` must have just been loaded; `position` is the position that readers of the
    table see. Raises if the table cannot be compared."""
    table = shape.table
    if shape.history and not shape.key:
        message = f"{table} has no key, so the entries of its history do not tell which rows there are."
        raise PgetlError(ErrorKind.USAGE, message, remedy=_KEYLESS, table=str(table))
    if not log.exists or position is None:
        raise fencing.dropped(table)
    if log.unfit is not None:
        message = f"{table} in the destination cannot be read as it is: others have given it {log.unfit}."
        raise PgetlError(ErrorKind.SCHEMA, message, remedy=fencing.COPY_AGAIN, table=str(table))
    if not log.held:
        raise fencing.replaced(table, log.other_holder)
    shape.layout_in(log)
    if shape.history:
        return HistorySnapshot(log, shape, position, log.files())
    return DeltaSnapshot(log, shape, position, log.files())
