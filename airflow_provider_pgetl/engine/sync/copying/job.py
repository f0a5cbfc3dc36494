"""What one copy is asked to do: the form in which a command line or a DAG hands it to Spark. No secrets are in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from airflow_provider_pgetl.engine import declaring
from airflow_provider_pgetl.engine.config import PipelineSpec
from airflow_provider_pgetl.engine.tables import TableName


@dataclass(frozen=True, slots=True)
class CopyTable:
    """A table of the source, and its name in the destination. `replaces`: rows there that the pipeline did not write
    may be replaced."""

    source: TableName
    destination: TableName
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class CopyJob:
    """One group. `snapshot_only`: no stream will follow, so no slot is kept. `attempt`: the one that was begun for it
    already (`reserving`); None leaves that to whoever copies."""

    spec: PipelineSpec
    tables: tuple[CopyTable, ...]
    snapshot_only: bool = False
    attempt: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "spec": declaring.as_json(self.spec),
            "tables": [asdict(table) for table in self.tables],
            "snapshot_only": self.snapshot_only,
            "attempt": self.attempt,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CopyJob:
        tables = tuple(
            CopyTable(TableName(**one["source"]), TableName(**one["destination"]), one["replaces"])
            for one in data["tables"]
        )
        return cls(declaring.from_json(PipelineSpec, data["spec"]), tables, data["snapshot_only"], data["attempt"])
