"""A source with a publication, a store and a destination in memory: what a copy needs around it."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyResult, CopyTable
from airflow_provider_pgetl.engine.config.spec import CopySpec, DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.copy.attempt import Settings, copy_group
from airflow_provider_pgetl.engine.copy.runners import LocalRunner, RangeRunner
from airflow_provider_pgetl.engine.destinations.memory import MemoryDestination, shared_storage
from airflow_provider_pgetl.engine.model.phases import Phase, PhaseName, phase_name
from airflow_provider_pgetl.engine.model.reports import Noted, Report
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.store import Store
from airflow_provider_pgetl.testing.servers.postgres_servers import Database

SOURCE, DESTINATION = "PGETL_TEST_SOURCE", "PGETL_TEST_DESTINATION"
QUICK = Settings(slot_patience=60.0, patience=3.0, attempt_ttl=60.0)


BIG, SMALL, EMPTY = (TableName("public", name) for name in ("big", "small", "empty"))


def ids(memory: MemoryDestination, table: TableName) -> list[int]:
    return sorted(int(row["id"]) for row in memory.rows(table))


def public(name: str) -> TableName:
    return TableName("public", name)


@dataclass
class Copies:
    """Copies out of one source. What happens is in `reports`."""

    id: str
    source: Database
    destination: DestinationSpec
    store: Store
    reports: list[Report] = field(default_factory=list)
    range_bytes: int = 64 << 10

    @property
    def spec(self) -> PipelineSpec:
        return PipelineSpec(
            id=self.id,
            tables=(TableSpec("*.*"),),
            source=SourceSpec(f"env:{SOURCE}", publication="p", manage_publication=False),
            destination=self.destination,
            copy=CopySpec(range_bytes=self.range_bytes),
        )

    def publish(self, what: str = "for all tables") -> None:
        self.source.execute(f"create publication p {what} with (publish_via_partition_root = true)")

    def register(self, *tables: TableName) -> None:
        for table in tables:
            ((oid,),) = self.source.execute("select %s::regclass::oid::int8", [table.sql])
            self.store.register(table, oid, None)

    def copy(self, *tables: TableName, register: bool = True, **more: Any) -> CopyResult:
        """Register the tables and copy them as one group, under their own names."""
        if register:
            self.register(*tables)
        return self.copy_as({table: table for table in tables}, **more)

    def copy_as(
        self,
        places: Mapping[TableName, TableName],
        runner: RangeRunner | None = None,
        *,
        snapshot_only: bool = False,
        stop: threading.Event | None = None,
        settings: Settings = QUICK,
    ) -> CopyResult:
        tables = tuple(CopyTable(table, place) for table, place in places.items())
        job = CopyJob(self.spec, tables, snapshot_only)
        return copy_group(job, self.store, runner or LocalRunner(2), self.reports.append, stop, settings)

    def phase(self, table: TableName) -> Phase:
        self.store.load()
        return self.store.tables()[table].state.phase

    def phases(self) -> Mapping[TableName, PhaseName]:
        self.store.load()
        return {table: phase_name(record.state.phase) for table, record in self.store.tables().items()}

    def staged(self) -> list[TableName]:
        """What is staged in the destination in memory."""
        return [table for pipeline, table, _ in shared_storage(self.id).staging if pipeline == self.id]

    def slots(self) -> set[str]:
        return {name for (name,) in self.source.execute("select slot_name::text from pg_replication_slots")}

    @property
    def notes(self) -> list[str]:
        return [report.message for report in self.reports if isinstance(report, Noted)]
