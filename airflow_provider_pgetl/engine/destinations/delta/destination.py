"""Delta Lake as a destination, with every ability of the protocol but the raw COPY stream.

One object is for one thread. What it keeps between calls are loaded logs, which every call brings up to date.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from airflow_provider_pgetl.engine.changes.batch import EventBatch, TablePosition, Target
from airflow_provider_pgetl.engine.delta_options import DeltaOptions
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.delta import direct, housekeeping
from airflow_provider_pgetl.engine.destinations.delta.applying import Applier, blamed_on
from airflow_provider_pgetl.engine.destinations.delta.book import Book, Entries
from airflow_provider_pgetl.engine.destinations.delta.log import Conflict, Standing, TableLog
from airflow_provider_pgetl.engine.destinations.delta.shape import Shape
from airflow_provider_pgetl.engine.destinations.delta.staged_files import StagedFiles
from airflow_provider_pgetl.engine.destinations.delta.staging import Copies
from airflow_provider_pgetl.engine.destinations.delta.storage import Lake
from airflow_provider_pgetl.engine.destinations.protocol import Misses
from airflow_provider_pgetl.engine.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.findings import Finding
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.tables import TableName, TableSchema

logger = logging.getLogger(__name__)

WRITE_INTERVAL = 10.0
_PATIENCE = 20


class DeltaDestination:
    """Destination, AtomicCopy, RangeRows, Positions, Paced, Inspectable, Forgetting and Counting. `options` are as
    declared, references resolved."""

    def __init__(self, uri: str, pipeline: str, options: Mapping[str, Any] | None = None) -> None:
        self._options = DeltaOptions.read(options or {})
        self._pipeline = pipeline
        self._lake = Lake(uri, self._options.storage)
        self._books: dict[str, Book] = {}
        self._logs: dict[tuple[str, TableName], TableLog] = {}
        self._misses: dict[TableName, Misses] = {}
        retention = self._options.vacuum_retention
        self._vacuum = None if retention is None else housekeeping.Vacuum(retention)

    @property
    def name(self) -> str:
        return "delta"

    @property
    def write_interval(self) -> float:
        return WRITE_INTERVAL

    def shutdown(self) -> None:
        self._books.clear()
        self._logs.clear()

    def inspect(self) -> list[Finding]:
        """Write a file, read it and take it away."""
        place = self._lake.place("_pgetl")
        try:
            place.write("probe", b"pgetl")
            place.read("probe")
            place.delete("probe")
        except PgetlError as error:
            return [Finding(error.message, error.remedy)]
        return []

    # -- changes

    def write_events(self, batch: EventBatch) -> None:
        applier = Applier(
            self._book(batch.pipeline),
            lambda table: self._log(batch.pipeline, table),
            self._shape,
        )
        for table, missed in applier.write(batch).items():
            self._misses[table] = self._misses.get(table, Misses()) + missed
        if self._options.housekeeping:
            self._keep_house(batch)

    def _keep_house(self, batch: EventBatch) -> None:
        """The batch is durable, whatever becomes of this."""
        for table, move in batch.moves.items():
            try:
                log = self._log(batch.pipeline, table)
                housekeeping.compact(log, self._shape(move.target.schema), log.standing())
                if self._vacuum is not None:
                    self._vacuum.run(log)
            except PgetlError as error:
                logger.warning("%s could not be tidied now: %s", table, error)

    def misses(self) -> Mapping[TableName, Misses]:
        return dict(self._misses)

    def claim(self, pipeline: str, epoch: int) -> None:
        """In the book first, then in each table's log: a writer of an earlier epoch that looks into both, the log
        first, sees the claim in one of them, or collides with it."""

        def judge(entries: Entries) -> Entries:
            return Entries(fencing.claim(entries.epoch, epoch), entries.tables)

        for table in self._book(pipeline).change(judge).tables:
            self._until_committed(pipeline, table, lambda standing: _claimed(standing, epoch))

    def positions(self, pipeline: str) -> Mapping[TableName, TablePosition]:
        return dict(self._positions(pipeline))

    def _positions(self, pipeline: str) -> Iterator[tuple[TableName, TablePosition]]:
        for table, begun in self._book(pipeline).read().tables.items():
            log = self._log(pipeline, table)
            log.refresh()
            record = log.standing().record
            if record is not None and record.attempt >= begun.attempt and record.table_position is not None:
                yield table, record.table_position

    def adopt(self, target: Target) -> None:
        table = target.schema.table

        def judge(standing: Standing) -> Standing:
            return Standing(fencing.adopt(standing.record, target.generation, table), standing.epoch)

        self._until_committed(target.pipeline, table, judge)

    def forget(self, pipeline: str) -> None:
        """The tables first: while the book still lists them, this can be done again."""
        for table in self._book(pipeline).read().tables:
            StagedFiles(self._log(pipeline, table)).remove_all()
            self._until_committed(pipeline, table, lambda _: Standing(None))
        self._book(pipeline).change(lambda _: Entries())

    def _until_committed(self, pipeline: str, table: TableName, judge: Any) -> None:
        """Have the log say what `judge` makes of what it says, however often others commit meanwhile."""
        log = self._log(pipeline, table)
        for _ in range(_PATIENCE):
            exists = log.refresh()
            before = log.standing()
            after = judge(before)
            if after == before or not exists:
                return
            try:
                log.commit([], after)
                return
            except Conflict:
                continue
        raise PgetlError(ErrorKind.CONNECTION, f"Others commit to {table} without end.", table=str(table))

    # -- copies

    def begin_copy(self, target: Target, attempt: int) -> None:
        with blamed_on(target.schema.table):
            self._copies(target).begin(attempt)

    def write_range_rows(
        self, target: Target, attempt: int, number: int, position: Boundary, batches: Iterable[pa.RecordBatch]
    ) -> int:
        with blamed_on(target.schema.table):
            return self._copies(target).write_range(attempt, number, position, batches)

    def finish_copy(self, target: Target, attempt: int, position: Boundary) -> None:
        with blamed_on(target.schema.table):
            self._copies(target).finish(attempt, position)

    def abort_copy(self, target: Target, attempt: int) -> None:
        self._copies(target).abort(attempt)

    # -- the plain contract

    def drop_table_for_copy(self, schema: TableSchema) -> None:
        direct.drop(self._lake, schema)
        self._logs.pop((self._pipeline, schema.table), None)

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        direct.write(self._log(self._pipeline, schema.table), self._shape(schema), rows)

    # -- what is kept

    def _copies(self, target: Target) -> Copies:
        log = self._log(target.pipeline, target.schema.table)
        return Copies(self._book(target.pipeline), log, self._shape(target.schema), target)

    def _shape(self, schema: TableSchema) -> Shape:
        return Shape(schema, self._options)

    def _book(self, pipeline: str) -> Book:
        return self._books.setdefault(pipeline, Book(self._lake, pipeline))

    def _log(self, pipeline: str, table: TableName) -> TableLog:
        key = pipeline, table
        if key not in self._logs:
            self._logs[key] = TableLog(self._lake.table(table), pipeline)
        return self._logs[key]


def _claimed(standing: Standing, epoch: int) -> Standing:
    if standing.epoch > epoch:
        raise Fenced(f"Epoch {epoch} came too late: epoch {standing.epoch} has claimed the table.")
    return Standing(standing.record, epoch)
