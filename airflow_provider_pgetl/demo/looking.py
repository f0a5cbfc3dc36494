"""One look at the demo: where each table is, how many rows it has on both sides, how far behind the replica is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psycopg

from airflow_provider_pgetl.declarations import Replication
from airflow_provider_pgetl.demo import comparing
from airflow_provider_pgetl.demo.destinations import DemoDestination
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.phases import Errored, PhaseName, phase_name
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.status import Status
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.servers.postgres import Database


@dataclass(frozen=True, slots=True)
class TableLook:
    """A table; `phase` is None before the pipeline knows it, `trouble` what made it Errored."""

    table: TableName
    phase: PhaseName | None
    rows_here: int | None
    rows_there: int | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Look:
    """Everything at one moment. `wal_end` is the source's, `durable` how far the replica certainly is."""

    tables: tuple[TableLook, ...]
    wal_end: Boundary | None = None
    durable: Boundary | None = None

    @property
    def ready(self) -> bool:
        return all(each.phase == "Ready" for each in self.tables)

    def has_reached(self, end: Boundary | None) -> bool:
        """Whether everything before `end` is in the replica, for certain."""
        return end is not None and self.durable is not None and self.durable >= end

    @property
    def lag_bytes(self) -> int | None:
        if self.wal_end is None or self.durable is None:
            return None
        return max(0, self.wal_end.lsn - self.durable.lsn)


class Onlooker:
    """Looks at a pipeline from outside, as `pgetl status` does."""

    def __init__(
        self, replication: Replication, environment: Mapping[str, str], source: Database, destination: DemoDestination
    ) -> None:
        self._pipeline = Pipeline(replication.spec, environment=environment)
        self._tables = replication.tables
        self._source = source
        self._destination = destination

    def close(self) -> None:
        self._pipeline.close()

    def look(self) -> Look:
        status = self._status()
        phases = {} if status is None else {each.table: each.state.phase for each in status.tables}
        with self._source.connect() as session:
            here = {table: comparing.count(session, table) for table in self._tables}
        looks = []
        for table in self._tables:
            phase = phases.get(table)
            trouble = phase.reason if isinstance(phase, Errored) else ""
            name = None if phase is None else phase_name(phase)
            looks.append(TableLook(table, name, here[table], self._destination.count(table), trouble))
        if status is None:
            return Look(tuple(looks))
        return Look(tuple(looks), status.wal_end, _durable(status))

    def _status(self) -> Status | None:
        """None before `prepare` has run, and while the store does not answer."""
        try:
            return self._pipeline.status() if self._is_prepared() else None
        except PgetlError:
            return None

    def _is_prepared(self) -> bool:
        """Opening a store creates it; that is left to the DAG."""
        try:
            return self._source.execute("select to_regclass('pgetl.tables') is not null") == [(True,)]
        except psycopg.OperationalError:
            return False


def _durable(status: Status) -> Boundary | None:
    return next((slot.confirmed for slot in status.slots or () if slot.stream == "apply"), None)
