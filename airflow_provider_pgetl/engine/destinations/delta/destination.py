"""Delta Lake as a destination. It accepts copied rows as columns (`RangeRows`), not the raw COPY stream.

An instance is used by one thread. Between calls it keeps loaded logs, which every call brings up to date.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_provider_pgetl.engine.changes.batch import EventBatch, TablePosition, Target
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.delta import apply, maintenance, metadata, schema_changes
from airflow_provider_pgetl.engine.destinations.delta.apply import DeltaApplier, LandingSink, Sink, TableSink, blamed_on
from airflow_provider_pgetl.engine.destinations.delta.copy import Copies, append_rows, drop_table
from airflow_provider_pgetl.engine.destinations.delta.files.key_index import KeyIndexes
from airflow_provider_pgetl.engine.destinations.delta.history_reading import HistorySnapshot
from airflow_provider_pgetl.engine.destinations.delta.log import store_preflight
from airflow_provider_pgetl.engine.destinations.delta.log.storage import Lake
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import TableLog
from airflow_provider_pgetl.engine.destinations.delta.log.transactions import LogState
from airflow_provider_pgetl.engine.destinations.delta.maintenance import StagedFiles, Vacuum
from airflow_provider_pgetl.engine.destinations.delta.merge.landed_merge import LandedMerge, one_by_one
from airflow_provider_pgetl.engine.destinations.delta.merge.landing import Landing, landing_place
from airflow_provider_pgetl.engine.destinations.delta.metadata import Begun, Entries, LakeMetadata
from airflow_provider_pgetl.engine.destinations.delta.options import DeltaOptions, expect_no_lock
from airflow_provider_pgetl.engine.destinations.delta.reading import snapshot
from airflow_provider_pgetl.engine.destinations.delta.shape import DeltaShape
from airflow_provider_pgetl.engine.destinations.protocol import (
    AtomicCopy,
    Destination,
    Inspecting,
    Merged,
    Merging,
    Misses,
    Positions,
    Preferences,
    RangeRows,
    Readable,
    SchemaChange,
    SchemaChanges,
    Spread,
    Stamp,
    TableSnapshot,
)
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, Finding, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema, written
from airflow_provider_pgetl.engine.runtime.processes import spare_pandas

logger = logging.getLogger(__name__)

WRITE_INTERVAL = 10.0
_TABLES_AT_ONCE = 100
_LOGS_KEPT = 100


class DeltaDestination(
    Destination, AtomicCopy, RangeRows, Positions, SchemaChanges, Inspecting, Preferences, Merging, Readable
):
    """`options` are as declared, with references resolved."""

    def __init__(self, uri: str, pipeline: str, options: Mapping[str, Any] | None = None) -> None:
        spare_pandas()
        self._options = DeltaOptions.read(options or {})
        self._pipeline = pipeline
        if self._options.marks_rows:
            expect_no_lock()
        self._lake = Lake(uri, self._options.storage)
        self._metadata_of: dict[str, LakeMetadata] = {}
        self._logs: dict[tuple[str, TableName], TableLog] = {}
        self._landings: dict[tuple[str, TableName], Landing] = {}
        self._misses: dict[TableName, Misses] = {}
        self._indexes = KeyIndexes(self._options.key_index_bytes) if self._options.marks_rows else None
        self._compaction = maintenance.Compaction()
        retention = self._options.vacuum_retention
        self._vacuum = None if retention is None else Vacuum(retention)

    @property
    def name(self) -> str:
        return "delta"

    @property
    def write_interval(self) -> float:
        return WRITE_INTERVAL

    def shutdown(self) -> None:
        self._metadata_of.clear()
        self._logs.clear()
        self._landings.clear()
        if self._indexes is not None:
            self._indexes.close()

    def inspect(self) -> list[Finding]:
        try:
            store_preflight.probe(self._lake, marks_rows=self._options.marks_rows)
        except PgetlError as error:
            return [Finding.of(error)]
        return []

    def inspect_table(self, schema: TableSchema) -> list[Finding]:
        try:
            self._shape(schema).expect_names()
        except PgetlError as error:
            return [Finding.of(error)]
        return []

    # -- changes

    def write_events(self, batch: EventBatch) -> None:
        """A batch of very many tables is written in groups, because each table holds its log and changes in memory."""
        tables = sorted(batch.moves)
        for first in range(0, len(tables), _TABLES_AT_ONCE):
            some = tables[first : first + _TABLES_AT_ONCE]
            self._write(replace(batch, moves={table: batch.moves[table] for table in some}))
            self._keep_logs(batch.pipeline, some)

    def _write(self, batch: EventBatch) -> None:
        """Writes the changes of the tables that the batch moves; changes of other tables are skipped."""
        pipeline = batch.pipeline
        if self.lands:
            self._open_landings(pipeline, batch.moves, batch.epoch)
        for table, missed in (
            DeltaApplier(self._metadata(pipeline), self._sink(pipeline), self._shape).write(batch).items()
        ):
            self._count(table, missed)
        if not self.lands:
            self._maintain(pipeline, {table: move.target.schema for table, move in batch.moves.items()})

    def _sink(self, pipeline: str) -> Sink:
        if self.lands:
            return LandingSink(partial(self._landing, pipeline))
        return TableSink(partial(self._log, pipeline), self._indexes)

    def _open_landings(self, pipeline: str, tables: Iterable[TableName], epoch: int) -> None:
        """Opens the landings of these tables. A new one is recorded in the lake metadata before changes land in it."""

        def judge(entries: Entries) -> Entries:
            if entries.epoch != epoch:
                raise Fenced(f"Epoch {epoch} may not write: the destination belongs to epoch {entries.epoch}.")
            return entries.with_landings(tables)

        fresh = set(tables) - self._metadata(pipeline).read().landings
        if fresh:
            self._metadata(pipeline).change(judge)
        for table in fresh:
            with blamed_on(table):
                self._landing(pipeline, table).open()

    def _count(self, table: TableName, missed: Misses) -> None:
        if missed != Misses():
            self._misses[table] = self._misses.get(table, Misses()) + missed

    def _maintain(self, pipeline: str, schemas: Mapping[TableName, TableSchema]) -> None:
        """Compacts and vacuums the tables. Failures are logged only, because what was written is durable already."""
        for table, schema in schemas.items():
            try:
                log = self._log(pipeline, table)
                if not log.held or log.is_impaired:
                    continue
                if self._options.housekeeping:
                    self._compaction.run(log, self._shape(schema))
                if self._vacuum is not None:
                    self._vacuum.run(log)
            except PgetlError as error:
                logger.warning("%s could not be tidied now: %s", written(table), error)

    def why_not(self, change: SchemaChange) -> str | None:
        log = self._log(change.target.pipeline, change.target.schema.table)
        return schema_changes.why_not(log, self._shape(change.target.schema), change)

    def change_schema(self, change: SchemaChange, epoch: int) -> None:
        pipeline, schema = change.target.pipeline, change.target.schema
        with blamed_on(schema.table):
            log, entries = self._log(pipeline, schema.table), self._metadata(pipeline)
            schema_changes.change_schema(log, entries, self._shape(schema), change, epoch)

    def misses(self) -> Mapping[TableName, Misses]:
        return dict(self._misses)

    def claim(self, pipeline: str, epoch: int) -> None:
        """Records the claim in the lake metadata first, then in each table's log. A writer of an earlier epoch reads
        the log first and the metadata second, so it sees the claim in one of them, or conflicts with it. The logs of
        landings follow those of the tables."""

        def judge(entries: Entries) -> Entries:
            return replace(entries, epoch=fencing.claim(entries.epoch, epoch))

        def claim_table(table: TableName) -> None:
            with _without_the_unusable():
                self._record_in_own(pipeline, table, lambda log_state: _claimed(log_state, epoch))

        entries = self._metadata(pipeline).change(judge)
        apply.each(claim_table, sorted(entries.tables))
        for table in entries.landings:
            with _without_the_unusable():
                landing = self._landing(pipeline, table)
                landing.open()
                landing.fence(lambda log_state: _claimed(log_state, epoch))
        if not self.lands and not self._options.keeps_history:  # a table gets a history only by a new copy
            self._merge_what_landed(pipeline, entries.landings)

    def stamp(self, pipeline: str, stamp: Stamp) -> Stamp:
        def judge(entries: Entries) -> Entries:
            return replace(entries, stamp=stamp.after(entries.stamp))

        return self._metadata(pipeline).change(judge).stamp or stamp

    def _merge_what_landed(self, pipeline: str, tables: Iterable[TableName]) -> None:
        """Merges what landed under an earlier configuration. From now on, changes are written straight into tables."""
        for table in tables:
            with _without_the_unusable():
                self.merge(pipeline, table, one_by_one, lambda: False)

    def positions(self, pipeline: str) -> Mapping[TableName, TablePosition]:
        records = {table: log_state.record for table, (log_state, _) in self._begun(pipeline).items()}
        return {table: record.table_position for table, record in records.items() if record and record.table_position}

    def _begun(self, pipeline: str) -> dict[TableName, tuple[LogState, Boundary | None]]:
        """Returns the log state and the merged position of each table whose log has at least the attempt that the lake
        metadata records. The loaded logs are not kept, because all tables are read here, while only those with changes
        are written to."""
        entries = self._metadata(pipeline).read()

        def look(table: TableName) -> tuple[LogState, Boundary | None]:
            try:
                return self._stands(pipeline, table, lands=table in entries.landings)
            except PgetlError as error:
                if error.kind not in _UNUSABLE:
                    raise
                return LogState(None), None

        found = dict(zip(entries.tables, apply.each(look, entries.tables), strict=True))
        return {
            table: (log_state, merged)
            for table, (log_state, merged) in found.items()
            if log_state.record is not None and log_state.record.attempt >= entries.tables[table].attempt
        }

    def _stands(self, pipeline: str, table: TableName, *, lands: bool) -> tuple[LogState, Boundary | None]:
        log = self._new_log(pipeline, table)
        if not lands:
            log_state, _ = log.glance()
            return log_state, None if log_state.record is None else log_state.record.position
        landing = self._new_landing(pipeline, table, log)
        landing.refresh()
        return landing.log_state(), landing.merged()

    def latest_attempt(self, pipeline: str) -> int:
        return max((begun.attempt for begun in self._metadata(pipeline).read().tables.values()), default=0)

    def adopt(self, target: Target) -> None:
        pipeline, table = target.pipeline, target.schema.table

        def judge(log_state: LogState) -> LogState:
            return LogState(fencing.adopt(log_state.record, target.generation, table), log_state.epoch)

        with blamed_on(table):
            self._record_in_own(pipeline, table, judge)
            if table in self._metadata(pipeline).read().landings:
                self._landing(pipeline, table).open()
                self._landing(pipeline, table).adopt(target.generation)

    def forget(self, pipeline: str) -> bool:
        """Forgets the tables first: while the lake metadata still lists them, the call can be repeated."""
        entries = self._metadata(pipeline).read()
        for table in entries.landings:
            self._warn_of_loss(table, self._landing(pipeline, table))
        for table in entries.tables:
            with _without_the_unusable():
                StagedFiles(self._log(pipeline, table)).remove_all()
                self._record(pipeline, table, lambda _: LogState(None))
        for table in entries.landings:
            with _without_the_unusable():
                self._landing(pipeline, table).forget()
        self._metadata(pipeline).change(lambda _: Entries())
        return entries != Entries()

    def _warn_of_loss(self, table: TableName, landing: Landing) -> None:
        with _without_the_unusable():
            landing.refresh()
            if lost := len(landing.pending()):
                logger.warning("%s: %d landed batches that were never merged are given up", written(table), lost)

    def indistinct(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        """Names that differ only in case are the same folder in some stores, and the same table in every catalog."""
        folded = Counter(str(table).casefold() for table in tables)
        return {
            table: f"{table} in the destination and another table have names that differ in case alone"
            for table in tables
            if folded[str(table).casefold()] > 1
        }

    def foreign_rows(self, pipeline: str, tables: Collection[TableName]) -> Mapping[TableName, str]:
        found: dict[TableName, str | None] = {}
        for table in tables:
            log = self._log(pipeline, table)
            with _without_the_unusable():
                log.refresh()
                found[table] = metadata.in_the_way(log, history=self._options.keeps_history)
        return {table: holds for table, holds in found.items() if holds is not None}

    def lost(self, pipeline: str) -> Mapping[TableName, PgetlError]:
        entries = self._metadata(pipeline).read()

        def judge(table: TableName) -> PgetlError | None:
            log = self._new_log(pipeline, table)
            try:
                with blamed_on(table):
                    return self._wrong_with(log, table, entries)
            except PgetlError as error:
                if error.kind in _UNUSABLE:
                    return error
                raise

        found = zip(entries.tables, apply.each(judge, entries.tables), strict=True)
        return {table: error for table, error in found if error is not None}

    def _wrong_with(self, log: TableLog, table: TableName, entries: Entries) -> PgetlError | None:
        if not self.lands and table in entries.landings:
            landing = self._new_landing(log.pipeline, table, log)
            if landing.refresh() and landing.pending():
                message = f"What landed beside {table} could not be merged into it."
                return PgetlError(ErrorKind.DAMAGED, message, table=str(table))
        log_state, held = log.glance()
        if held and log_state.record is not None and not log.is_impaired:
            return None
        log.refresh()
        return metadata.lost(log, entries.tables[table], table)

    def _record_in_own(self, pipeline: str, table: TableName, judge: Callable[[LogState], LogState]) -> None:
        """Changes what the table's log records, if this pipeline holds the table and others have not impaired it."""
        log = self._log(pipeline, table)
        if log.refresh() and log.held and not log.is_impaired:
            log.change(judge)

    def _record(self, pipeline: str, table: TableName, judge: Callable[[LogState], LogState]) -> None:
        """Changes what the table's log records, if there is a table."""
        log = self._log(pipeline, table)
        if log.refresh():
            log.change(judge)

    # -- what has landed

    @property
    def lands(self) -> bool:
        return self._options.lands

    def merged(self, pipeline: str) -> Mapping[TableName, Boundary]:
        found = self._begun(pipeline)
        return {table: position for table, (_, position) in found.items() if position is not None}

    def merge(self, pipeline: str, table: TableName, spread: Spread, stopped: Callable[[], bool]) -> Merged:
        if table not in self._metadata(pipeline).read().landings:
            return Merged()
        work = LandedMerge(self._landing(pipeline, table), self._shape, spread)
        with blamed_on(table):
            merged = work.run(stopped)
        self._count(table, work.misses)
        if work.shape is not None:
            self._maintain(pipeline, {table: work.shape.schema})
        return merged

    # -- copies

    def announce_copies(self, targets: Collection[Target], attempt: int) -> None:
        """Makes one commit to the lake metadata, instead of one for each table in `begin_copy`. Each new entry is
        checked again against the entries at the time of the commit; a table whose entry has moved on is skipped."""
        if not targets:
            return
        begun = {target.schema.table: self._copies(target).to_announce(attempt) for target in targets}
        wanted = {table: one for table, one in begun.items() if one is not None}

        def judge(entries: Entries) -> Entries:
            return entries.with_tables({table: one for table, one in wanted.items() if _is_later(one, entries, table)})

        self._metadata(self._pipeline).change(judge)

    def begin_copy(self, target: Target, attempt: int) -> None:
        self._shape(target.schema).expect_names()
        with blamed_on(target.schema.table):
            self._copies(target).begin(attempt)

    def write_range_rows(
        self, target: Target, attempt: int, number: int, position: Boundary, batches: Iterable[pa.RecordBatch]
    ) -> int:
        with blamed_on(target.schema.table):
            return self._copies(target).write_range(attempt, number, position, batches)

    def finish_copy(self, target: Target, attempt: int, position: Boundary, ranges: int | None = None) -> None:
        with blamed_on(target.schema.table):
            self._copies(target).finish(attempt, position, ranges)

    def abort_copy(self, target: Target, attempt: int) -> None:
        with blamed_on(target.schema.table):
            self._copies(target).abort(attempt)

    # -- reading

    @contextmanager
    def snapshots(
        self, pipeline: str, schemas: Collection[TableSchema]
    ) -> Iterator[Mapping[TableName, TableSnapshot | PgetlError]]:
        landings = self._metadata(pipeline).read().landings
        order = sorted(schemas, key=lambda schema: schema.table)

        def look(schema: TableSchema) -> TableSnapshot | PgetlError:
            try:
                with blamed_on(schema.table):
                    return self._snapshot(pipeline, schema, lands=schema.table in landings)
            except PgetlError as error:
                if error.transient:
                    raise
                return error

        found = dict(zip([schema.table for schema in order], apply.each(look, order), strict=True))
        try:
            yield found
        finally:
            for one in found.values():
                if isinstance(one, HistorySnapshot):
                    one.close()

    def _snapshot(self, pipeline: str, schema: TableSchema, *, lands: bool) -> TableSnapshot:
        log = self._new_log(pipeline, schema.table)
        if lands:
            landing = self._new_landing(pipeline, schema.table, log)
            landing.refresh()
            return snapshot(log, self._shape(schema), landing.merged())
        log.refresh()
        return snapshot(log, self._shape(schema), log.merged())

    # -- the basic protocol

    def drop_table_for_copy(self, schema: TableSchema) -> None:
        drop_table(self._lake, schema)
        self._logs.pop((self._pipeline, schema.table), None)
        self._landings.pop((self._pipeline, schema.table), None)

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        append_rows(self._log(self._pipeline, schema.table), self._shape(schema), rows)

    # -- what is kept

    def _copies(self, target: Target) -> Copies:
        log = self._log(target.pipeline, target.schema.table)
        return Copies(self._metadata(target.pipeline), log, self._shape(target.schema), target)

    def _shape(self, schema: TableSchema) -> DeltaShape:
        return DeltaShape(schema, self._options)

    def _metadata(self, pipeline: str) -> LakeMetadata:
        return self._metadata_of.setdefault(pipeline, LakeMetadata(self._lake, pipeline))

    def _landing(self, pipeline: str, table: TableName) -> Landing:
        key = pipeline, table
        if key not in self._landings:
            self._landings[key] = self._new_landing(pipeline, table, self._log(pipeline, table))
        return self._landings[key]

    def _log(self, pipeline: str, table: TableName) -> TableLog:
        key = pipeline, table
        if key not in self._logs:
            self._logs[key] = self._new_log(pipeline, table)
        return self._logs[key]

    def _new_landing(self, pipeline: str, table: TableName, log: TableLog) -> Landing:
        return Landing(log, TableLog(landing_place(self._lake, pipeline, table), pipeline))

    def _new_log(self, pipeline: str, table: TableName) -> TableLog:
        return TableLog(self._lake.table(table), pipeline)

    def _keep_logs(self, pipeline: str, used: Iterable[TableName]) -> None:
        """Keeps the `_LOGS_KEPT` most recently used of the loaded logs."""
        for kept in (self._logs, self._landings):
            _keep_last(kept, [(pipeline, table) for table in used])


def _keep_last(kept: dict[tuple[str, TableName], Any], used: Iterable[tuple[str, TableName]]) -> None:
    """Moves the used keys to the end and deletes the oldest; a dict keeps the order of insertion."""
    for key in used:
        if key in kept:
            kept[key] = kept.pop(key)
    for key in list(kept)[: max(0, len(kept) - _LOGS_KEPT)]:
        del kept[key]


# Errors in the table or its log themselves.
_UNUSABLE = (ErrorKind.DAMAGED, ErrorKind.SCHEMA)


@contextmanager
def _without_the_unusable() -> Iterator[None]:
    """Suppresses the errors of a table whose log cannot be read or written to, so that the other tables are processed.
    Writes and copies of the table raise the error, and `lost` returns it. A writer of an earlier epoch is still refused
    by the lake metadata."""
    try:
        yield
    except PgetlError as error:
        if error.kind not in _UNUSABLE:
            raise


def _is_later(begun: Begun, entries: Entries, table: TableName) -> bool:
    known = entries.tables.get(table)
    return known is None or (known.generation <= begun.generation and known.attempt < begun.attempt)


def _claimed(log_state: LogState, epoch: int) -> LogState:
    if log_state.epoch > epoch:
        raise Fenced(f"Epoch {epoch} came too late: epoch {log_state.epoch} has claimed the table.")
    return replace(log_state, epoch=epoch)
