"""PostgreSQL as a destination, with every ability of the protocol.

One object is one session under one name, for one thread. Everything it knows between calls is a cache: a broken
connection, or a call that failed, costs the cache and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager

import pyarrow as pa

from airflow_provider_pgetl.engine.changes.batch import EventBatch, TablePosition, Target
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.postgres import (
    direct,
    fitting,
    forgetting,
    inspection,
    locks,
    metadata,
    occupancy,
    publishing,
    reading,
    staging,
    types,
)
from airflow_provider_pgetl.engine.destinations.postgres.applying import Applier
from airflow_provider_pgetl.engine.destinations.postgres.session import Session, application_name
from airflow_provider_pgetl.engine.destinations.protocol import CopyFormat, Misses, Stamp, TableSnapshot
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.findings import Finding
from airflow_provider_pgetl.engine.marks import Mark
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.tables import TableName, TableSchema


class PostgresDestination:
    """Destination, AtomicCopy, RangeCopy, Positions, WireFormat, Inspectable, TableInspecting, Discerning, Holding,
    Stamped, Naming, Marked, Forgetting, Counting and Readable."""

    def __init__(self, uri: str, pipeline: str, worker: str = "worker") -> None:
        self._pipeline = pipeline
        self._session = Session(uri, application_name(pipeline, worker))
        self._applier = Applier(self._session)
        self._misses: dict[TableName, Misses] = {}

    @property
    def name(self) -> str:
        return "postgres"

    def shutdown(self) -> None:
        self._session.close()

    def cancel(self) -> None:
        """Have the server give up the call in flight, which then fails as a passing error. For another thread."""
        self._session.cancel()

    def inspect(self) -> list[Finding]:
        return list(inspection.findings(self._session))

    def inspect_table(self, schema: TableSchema) -> list[Finding]:
        return list(fitting.findings(self._session, self._pipeline, schema))

    def occupied(self, pipeline: str, tables: Collection[TableName]) -> Mapping[TableName, str]:
        return occupancy.of_others(self._session, pipeline, tables)

    def indistinct(self, tables: Collection[TableName]) -> Mapping[TableName, str]:
        return inspection.cut_names(tables)

    def lost(self, pipeline: str) -> Mapping[TableName, PgetlError]:
        return occupancy.lost(self._session, pipeline)

    def bears(self, mark: Mark) -> bool:
        return inspection.bears(self._session, mark)

    def forget(self, pipeline: str) -> bool:
        return forgetting.forget(self._session, pipeline)

    # -- changes

    def accepts_binary(self, schema: TableSchema) -> bool:
        return types.read_binary(self._session, schema)

    def write_events(self, batch: EventBatch) -> None:
        for table, missed in self._applier.write(batch).items():
            self._misses[table] = self._misses.get(table, Misses()) + missed

    def misses(self) -> Mapping[TableName, Misses]:
        return dict(self._misses)

    def claim(self, pipeline: str, epoch: int) -> None:
        metadata.ensure(self._session)
        with self._session.transaction():
            locks.take_over(self._session, locks.of_pipeline(pipeline))
            claimed = fencing.claim(metadata.epoch(self._session, pipeline), epoch)
            metadata.set_epoch(self._session, pipeline, claimed)

    def stamp(self, pipeline: str, stamp: Stamp) -> Stamp:
        metadata.ensure(self._session)
        with self._session.transaction():
            known = metadata.stamp(self._session, pipeline)
            noted = stamp.after(known)
            if noted != known:
                metadata.set_stamp(self._session, pipeline, noted)
        return noted

    def positions(self, pipeline: str) -> Mapping[TableName, TablePosition]:
        metadata.ensure(self._session)
        return dict(_positions(metadata.records(self._session, pipeline)))

    def latest_attempt(self, pipeline: str) -> int:
        metadata.ensure(self._session)
        return max((record.attempt for record in metadata.records(self._session, pipeline).values()), default=0)

    def adopt(self, target: Target) -> None:
        metadata.ensure(self._session)
        with self._session.transaction():
            known = metadata.record(self._session, target)
            record = fencing.adopt(known, target.generation, target.schema.table)
            metadata.set_record(self._session, target, record)

    # -- copies

    def copy_format(self, schema: TableSchema) -> CopyFormat:
        metadata.ensure(self._session)
        return staging.copy_format(self._session, self._pipeline, schema)

    def begin_copy(self, target: Target, attempt: int) -> None:
        staging.begin(self._session, target, attempt)

    def write_range(self, target: Target, attempt: int, number: int, blocks: Iterable[bytes]) -> int:
        return staging.write_range(self._session, target, attempt, number, blocks)

    def finish_copy(self, target: Target, attempt: int, position: Boundary, ranges: int | None = None) -> None:
        publishing.finish(self._session, target, attempt, position, ranges)

    def abort_copy(self, target: Target, attempt: int) -> None:
        staging.abort(self._session, target, attempt)

    # -- reading

    def snapshots(
        self, pipeline: str, schemas: Collection[TableSchema]
    ) -> AbstractContextManager[Mapping[TableName, TableSnapshot | PgetlError]]:
        return reading.snapshots(self._session, pipeline, schemas)

    # -- the plain contract

    def drop_table_for_copy(self, schema: TableSchema) -> None:
        direct.drop(self._session, schema)

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        direct.write(self._session, schema, rows)


def _positions(records: Mapping[TableName, fencing.Record]) -> Iterator[tuple[TableName, TablePosition]]:
    for table, record in records.items():
        position = record.table_position
        if position is not None:
            yield table, position
