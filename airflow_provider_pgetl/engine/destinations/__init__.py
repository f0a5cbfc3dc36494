"""Destinations: the destination protocol, and the destinations that pgetl includes.

`BUILT_IN` names the declarations of their types (`config.destination_types`). Other packages register theirs by entry
points instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_pgetl.engine.config.destination_types import ColumnDescription, DestinationType
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import TableSchema


@dataclass(frozen=True, slots=True)
class _Memory(DestinationType):
    """All memory destinations of this process that have the same name share one storage; the name is the pipeline's id
    unless the option `name` gives another."""

    def open(self, uri: str | None, options: Mapping[str, Any], pipeline: str, worker: str) -> object:
        from airflow_provider_pgetl.engine.destinations.memory import MemoryDestination, shared_storage

        del uri, worker
        return MemoryDestination(shared_storage(options.get("name", pipeline)))


@dataclass(frozen=True, slots=True)
class _Postgres(DestinationType):
    def open(self, uri: str | None, options: Mapping[str, Any], pipeline: str, worker: str) -> object:
        from airflow_provider_pgetl.engine.destinations.postgres import PostgresDestination

        del options
        if uri is None:
            raise PgetlError(ErrorKind.CONFIG, "The destination's URI was not resolved.")
        return PostgresDestination(uri, pipeline, worker)

    def columns(self, schema: TableSchema, options: Mapping[str, Any]) -> Sequence[ColumnDescription]:
        del options
        return [ColumnDescription(one.name, one.sql_type, one.comment) for one in schema.columns]


MEMORY = _Memory("memory", options=("name",), in_process=True)
POSTGRES = _Postgres("postgres", needs_uri="a Postgres server has an address", computes=True)

BUILT_IN = {
    "memory": f"{__name__}:MEMORY",
    "postgres": f"{__name__}:POSTGRES",
    "delta": f"{__name__}.delta.options:DELTA",
}
