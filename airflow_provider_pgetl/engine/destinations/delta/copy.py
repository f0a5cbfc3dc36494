"""Copies into a Delta table: executors write files that are not yet visible, the driver publishes them in one commit.

    <table>/copy-<pipeline>-<attempt>/<range>-<random>.parquet        the rows of a range
    <table>/_pgetl/copy-<pipeline>-<attempt>/begun                    the attempt may write
    <table>/_pgetl/copy-<pipeline>-<attempt>/<range>-<random>.json    the note of a complete range: its files, its rows

Invariants
* A range counts by its note, which is written when the range's files are complete. If a range ran twice and has two
  notes, publication uses one of them: the range is in the table once, however often and whenever its tasks ran.
* The table's directory is the final place of the files: publication moves nothing.
* Publication is one commit of the table's log, on a snapshot whose record was checked. In mode `upsert` it replaces all
  rows; in mode `history` it adds rows, after an entry that makes all entries before it void.
* The files of superseded, failed and aborted attempts are deleted when the next attempt begins, or earlier. Files of a
  published attempt are never deleted in this way: neither while its notes exist, nor while the table has any of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.delta import metadata
from airflow_provider_pgetl.engine.destinations.delta.files.data_files import FilesWriter, WrittenFile, new_name
from airflow_provider_pgetl.engine.destinations.delta.log.actions import Add
from airflow_provider_pgetl.engine.destinations.delta.log.storage import Lake
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import Conflict, TableLog
from airflow_provider_pgetl.engine.destinations.delta.log.transactions import LogState
from airflow_provider_pgetl.engine.destinations.delta.maintenance import Note, StagedFiles
from airflow_provider_pgetl.engine.destinations.delta.merge.working_set import WorkingSet
from airflow_provider_pgetl.engine.destinations.delta.metadata import Begun, Entries, LakeMetadata
from airflow_provider_pgetl.engine.destinations.delta.shape import KIND, DeltaShape, snapshot_entries, void_entry
from airflow_provider_pgetl.engine.destinations.delta.types import HeldColumn
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema

_PATIENCE = 10


class Copies:
    """The copies of one table by one pipeline."""

    def __init__(self, metadata: LakeMetadata, log: TableLog, shape: DeltaShape, target: Target) -> None:
        self._metadata = metadata
        self._log = log
        self._place = log.place
        self._staged = StagedFiles(log)
        self._shape = shape
        self._target = target
        self._table: TableName = target.schema.table

    # -- the record ---------------------------------------------------------------------------------------------------

    def to_announce(self, attempt: int) -> Begun | None:
        """Returns what the lake metadata must record when the attempt begins. None if it is recorded already, or if the
        attempt cannot begin, for which `begin` raises later."""
        try:
            before = self._load()
            record = fencing.begin(before.record, self._target.generation, attempt, self._table)
            if record == before.record:
                return None
            metadata.expect_free(self._log, self._target, self._shape)
        except PgetlError:
            return None
        return Begun(record.generation, record.attempt)

    def begin(self, attempt: int) -> None:
        for _ in range(_PATIENCE):
            before, told_by_log = self._load(), self._log.log_state().record
            record = fencing.begin(before.record, self._target.generation, attempt, self._table)
            if record != before.record:
                metadata.expect_free(self._log, self._target, self._shape)
            try:
                self._record(before, record)
            except Conflict:
                continue
            self._remove_earlier(attempt, told_by_log)
            if record.published != attempt:
                self._staged.begin(attempt)
            return
        raise self._busy()

    def _record(self, before: LogState, record: fencing.TableMetadata) -> None:
        begun = Begun(record.generation, record.attempt)
        seen = self._log.log_state()

        def judge(entries: Entries) -> Entries:
            known = _combined(entries.tables.get(self._table), before.record)
            fencing.begin(known, self._target.generation, record.attempt, self._table)
            return entries.with_table(self._table, begun)

        entries = self._metadata.change(judge)
        self._log.refresh()
        if self._log.log_state() != seen:
            raise Conflict(f"{self._table} has moved on since it was judged")
        if self._log.exists and seen.record != record:
            self._log.commit([], LogState(record, max(before.epoch, entries.epoch or 0)))

    def _load(self) -> LogState:
        """Returns what is recorded in the table's own log and in the lake metadata, combined."""
        self._log.refresh()
        entries = self._metadata.read()
        log_state = self._log.log_state()
        record = _combined(entries.tables.get(self._table), log_state.record)
        return LogState(record, max(log_state.epoch, entries.epoch or 0))

    # -- ranges -------------------------------------------------------------------------------------------------------

    def write_range(self, attempt: int, number: int, position: Boundary, batches: Iterable[pa.RecordBatch]) -> int:
        self._check_open(attempt)
        for note in self._staged.notes(attempt, number):
            return note.rows
        name = new_name(f"{self._staged.folder(attempt)}/{number:06d}")
        writer = FilesWriter(self._place, self._shape.layout, name, sorts=True)
        rows = 0
        try:
            for batch in batches:
                writer.write(self._entries(self._shape.decoded(batch.columns), position))
                rows += batch.num_rows
            files = writer.close()
        except BaseException:
            writer.abandon()
            raise
        self._staged.add(attempt, number, rows, files)
        return rows

    def _check_open(self, attempt: int) -> None:
        fencing.check_range(self._load().record, self._target.generation, attempt, self._table)
        self._expect_begun(attempt)

    def _expect_begun(self, attempt: int) -> None:
        if not self._staged.has_begun(attempt):
            raise Fenced(f"Copy attempt {attempt} of {self._table} was aborted.", table=str(self._table))

    def _entries(self, rows: pa.Table, position: Boundary) -> pa.Table:
        return snapshot_entries(self._shape, rows, position) if self._shape.history else rows

    # -- publication --------------------------------------------------------------------------------------------------

    def finish(self, attempt: int, position: Boundary, ranges: int | None = None) -> None:
        for _ in range(_PATIENCE):
            before = self._load()
            record = fencing.finish(before.record, self._target.generation, attempt, position, self._table)
            if record is None:
                self._staged.settle(attempt)
                return
            self._expect_begun(attempt)
            chosen = self._staged.chosen(attempt)
            fencing.expect_ranges(len(chosen), ranges, attempt, self._table)
            self._expect_files(attempt, chosen)
            try:
                self._publish(attempt, position, chosen, before, LogState(record, before.epoch))
            except Conflict:
                continue
            self._staged.settle(attempt)
            return
        raise self._busy()

    def _expect_files(self, attempt: int, ranges: Iterable[Note]) -> None:
        """Raises if files of the ranges are missing: a table whose log lists missing files cannot be read."""
        there = set(self._place.list(self._staged.folder(attempt)))
        if lost := sum(one.path not in there for note in ranges for one in note.files):
            message = f"{lost} of the files that copy attempt {attempt} has written of {self._table} are gone."
            raise PgetlError(ErrorKind.COPY_DIED, message, table=str(self._table))

    def _publish(
        self, attempt: int, position: Boundary, ranges: Iterable[Note], before: LogState, log_state: LogState
    ) -> None:
        words = self._shape.words(self._target.pipeline)
        adds = [one.add() for note in ranges for one in note.files]
        if not self._log.exists:
            self._log.create(self._shape.fields, before, words)
            self._log.commit(adds, log_state, publishes=True)
        else:
            self._replace(adds, attempt, position, before, log_state)
            self._log.describe(words, log_state)

    def _replace(
        self, adds: list[Add], attempt: int, position: Boundary, before: LogState, log_state: LogState
    ) -> None:
        self._log.allow(self._shape.fields, before)
        metadata.expect_free(self._log, self._target, self._shape)
        fields = self._shape.fields
        if self._shape.history and KIND in self._log.column_names and not self._log.retyped(fields):
            self._log.add_columns(fields, before)
            adds.insert(0, self._void(attempt, position).add())
            self._log.commit(adds, log_state, publishes=True)
        else:
            self._log.commit(adds, log_state, publishes=True, overwrite=fields)

    def _void(self, attempt: int, position: Boundary) -> WrittenFile:
        """Writes a file with the entry that makes all entries before it void."""
        writer = FilesWriter(self._place, self._shape.layout, new_name(f"{self._staged.folder(attempt)}/void"))
        writer.write(void_entry(self._shape, position))
        (written,) = writer.close()
        return written

    # -- cleanup ------------------------------------------------------------------------------------------------------

    def abort(self, attempt: int) -> None:
        record = self._load().record
        self._staged.remove(attempt, published=record is not None and record.published == attempt)

    def _remove_earlier(self, attempt: int, before: fencing.TableMetadata | None) -> None:
        """Deletes what earlier attempts left. `before` is the log's record from before this attempt began, which still
        has the attempt that was published last."""
        for earlier in (one for one in self._staged.attempts() if one < attempt):
            self._staged.remove(earlier, published=before is not None and before.published == earlier)

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _busy(self) -> PgetlError:
        message = f"Others write to {self._table} without end, so that its copy cannot."
        return PgetlError(ErrorKind.CONNECTION, message, table=str(self._table))


def _combined(begun: Begun | None, record: fencing.TableMetadata | None) -> fencing.TableMetadata | None:
    """Combines the records of the lake metadata and of the table's log. For a table that does not exist yet, only the
    metadata has the attempt; otherwise the log's record is used unless its attempt is earlier."""
    if begun is None or (record is not None and record.attempt >= begun.attempt):
        return record
    return fencing.TableMetadata(begun.generation, begun.attempt)


# ----------------------------------------------------------------------------------------------------------------------
# The basic `Destination` protocol: rows are written straight into the table, without staging and without a position.
# The engine itself copies by attempts (`Copies`); these functions are for code that drives a destination directly.


def drop_table(lake: Lake, schema: TableSchema) -> None:
    """Deletes the table's log first: without a log, no table refers to its files."""
    place = lake.table(schema.table)
    place.delete_all("_delta_log")
    place.delete_all("")


def append_rows(log: TableLog, shape: DeltaShape, rows: pa.RecordBatch) -> None:
    """Appends rows and creates the table if it is missing. Text values are decoded, values of other types are cast."""
    exists = log.refresh()
    files = WorkingSet(log.place, shape.layout, [])
    arrays = [_held(one, array) for one, array in zip(shape.columns, rows.columns, strict=True)]
    typed = pa.Table.from_arrays(arrays, schema=shape.rows)
    files.append([snapshot_entries(shape, typed, START) if shape.history else typed])
    log_state = log.log_state() if exists else LogState(None)
    if not exists:
        log.create(shape.fields, log_state, shape.words(""))
    log.commit(files.adds(), log_state, publishes=True)


def _held(one: HeldColumn, values: pa.Array) -> pa.Array:
    if pa.types.is_string(values.type) and values.type != one.type:
        return one.decode(pc.cast(values, pa.large_binary()))
    return pc.cast(values, one.type)
