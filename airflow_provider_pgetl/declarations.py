"""What a DAG's author declares: tables, destinations, and the replication that binds them to Airflow's connections.

All of it is plain, frozen, checked when it is made, and free of secrets: it stands in DAG files, is serialised with
triggers and handed to Spark. Values of connections are looked up by `connections`, at run time. Nothing here imports
Airflow, Spark or a database driver, so that parsing a DAG costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_pgetl.connections import DESTINATION, SOURCE, STATE, STORAGE, ConnectionIds
from airflow_provider_pgetl.engine import declaring
from airflow_provider_pgetl.engine.config import (
    CopySpec,
    DestinationSpec,
    Existing,
    OnSlotLost,
    PipelineSpec,
    SourceSpec,
    SparkSpec,
    StreamSpec,
    TableSpec,
)
from airflow_provider_pgetl.engine.quantities import parse_duration, parse_size
from airflow_provider_pgetl.engine.table_names import Pattern
from airflow_provider_pgetl.engine.tables import TableName


def Table(  # noqa: N802  reads as the declaration that it makes
    name: str,
    *,
    columns: Sequence[str] = (),
    where: str | None = None,
    insert_only: bool = False,
    destination: str | None = None,
    existing: Existing | None = None,
) -> TableSpec:
    """One table, ``schema.table``, with what is to be different about it.

    :param columns: replicate only these columns (they must include the replica identity).
    :param where: replicate only rows that satisfy this SQL condition, a row filter of the publication.
    :param insert_only: follow inserts and truncates alone; the table then needs no replica identity.
    :param destination: its name in the destination, if another than its own.
    :param existing: ``"replace"`` lets the copy replace rows there that this pipeline did not write; ``"error"``
        refuses that. Default: what is declared of the destination.
    """
    return TableSpec(name, tuple(columns), where, insert_only, destination, existing)


class DestinationDeclaration(Protocol):
    """Where tables go. `conn_id` names the Airflow connection of its server, if it has one; `storage_conn_id` that of
    its object store. Each has `existing`, too: ``"replace"`` lets copies replace rows there that the pipeline did not
    write."""

    @property
    def conn_id(self) -> str | None: ...

    @property
    def storage_conn_id(self) -> str | None: ...

    def spec(self) -> DestinationSpec: ...


@dataclass(frozen=True, slots=True)
class Postgres:
    """Another Postgres, by an ordinary Airflow postgres connection."""

    conn_id: str
    existing: Existing = "error"

    @property
    def storage_conn_id(self) -> None:
        return None

    def spec(self) -> DestinationSpec:
        return DestinationSpec("postgres", f"env:{DESTINATION}", existing=self.existing)


@dataclass(frozen=True, slots=True)
class DeltaLake:
    """Delta tables below `uri`: a path, or an object store's address like ``"s3://lake/shop"``.

    `storage_conn_id` names the object store's Airflow connection, of type aws, google_cloud_platform, wasb or adls;
    where machines have a role of their own it is left out. `storage` is configuration of the store beside it, or
    instead: it goes before what the connection says, and secrets in it are references, ``env:NAME`` or ``file:PATH``,
    to what is there on workers and triggerers. `options` are those of ``[destination]`` in a pipeline file: `mode`,
    `numeric`, and so on.
    """

    uri: str
    storage_conn_id: str | None = None
    storage: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    existing: Existing = "error"

    @property
    def conn_id(self) -> None:
        return None

    def spec(self) -> DestinationSpec:
        storage: dict[str, Any] = {"storage": dict(self.storage)} if self.storage else {}
        if self.storage_conn_id is not None:
            storage["storage_from"] = f"env:{STORAGE}"
        return DestinationSpec("delta", self.uri, {**self.options, **storage}, self.existing)


@dataclass(frozen=True, slots=True)
class CustomDestination:
    """A destination of your own: ``package.module:Class``, constructed with `options`, and `uri=` from `conn_id`."""

    path: str
    conn_id: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    existing: Existing = "error"

    @property
    def storage_conn_id(self) -> None:
        return None

    def spec(self) -> DestinationSpec:
        return DestinationSpec(self.path, f"env:{DESTINATION}" if self.conn_id else None, self.options, self.existing)


@dataclass(frozen=True, slots=True)
class Copying:
    """How copies are made. Sizes like ``"64MiB"``."""

    table_workers: int = 2
    range_bytes: str = "64MiB"
    group_bytes: str = "1GiB"

    def spec(self) -> CopySpec:
        return CopySpec(self.table_workers, parse_size(self.range_bytes), parse_size(self.group_bytes))


@dataclass(frozen=True, slots=True)
class Streaming:
    """How changes are followed. `memory` bounds what is gathered; `min_interval` like ``"10s"`` spaces out commits."""

    memory: str = "256MiB"
    min_interval: str | None = None

    def spec(self) -> StreamSpec:
        interval = None if self.min_interval is None else parse_duration(self.min_interval)
        return StreamSpec(parse_size(self.memory), interval)


@dataclass(frozen=True, slots=True)
class Replication:
    """One pipeline as Airflow runs it: what every task and trigger of it is given."""

    spec: PipelineSpec
    connections: ConnectionIds
    spark_conn_id: str = "spark_default"

    @property
    def tables(self) -> tuple[TableName, ...]:
        return tuple(table.pattern.literal for table in self.spec.tables)

    def as_json(self) -> dict[str, Any]:
        return {
            "spec": self.spec.as_json(),
            "connections": self.connections.as_json(),
            "spark_conn_id": self.spark_conn_id,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Replication:
        spec = PipelineSpec.from_json(data["spec"])
        return cls(spec, ConnectionIds.from_json(data["connections"]), data["spark_conn_id"])


def declare(
    pipeline_id: str,
    *,
    source_conn_id: str,
    tables: Sequence[str | TableSpec],
    destination: DestinationDeclaration,
    state_conn_id: str | None = None,
    spark_conn_id: str = "spark_default",
    publication: str | None = None,
    manage_publication: bool = True,
    on_slot_lost: OnSlotLost = "error",
    failover: bool = False,
    copying: Copying = Copying(),
    streaming: Streaming = Streaming(),
    spark_submit: str = "",
) -> Replication:
    """The declaration of one pipeline, or an error that says what is wrong with it."""
    specs = tuple(table if isinstance(table, TableSpec) else Table(table) for table in tables)
    for spec in specs:
        _refuse_pattern(spec.pattern, spec.name)
    source = SourceSpec(f"env:{SOURCE}", publication or "", manage_publication, on_slot_lost, failover)
    return Replication(
        PipelineSpec(
            id=pipeline_id,
            tables=specs,
            source=source,
            destination=destination.spec(),
            state_uri=f"env:{STATE}",
            spark=SparkSpec(submit=spark_submit),
            copy=copying.spec(),
            stream=streaming.spec(),
        ),
        ConnectionIds(
            source_conn_id, state_conn_id or source_conn_id, destination.conn_id, destination.storage_conn_id
        ),
        spark_conn_id,
    )


def _refuse_pattern(pattern: Pattern, name: str) -> None:
    if pattern.wildcard:
        declaring.refuse(
            "tables",
            f'"{name}" is a pattern, and a DAG is made of the tables that it names: finding them out would need the '
            "source each time the file is parsed.",
            remedy="Write the tables out.",
        )


def pipeline_id_of(dag_id: str) -> str:
    """A pipeline's id from a DAG's: lower case, single underscores. Too long a one must be shortened by a person."""
    return re.sub(r"[^a-z0-9]+", "_", dag_id.lower()).strip("_")
