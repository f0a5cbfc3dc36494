"""What a person declares about a pipeline: frozen, validated, serialisable, and free of secrets.

Connections are *references* (`env:NAME`, `file:PATH`, or a URI without a password); `secrets.resolve` turns them into
URIs at run time, in the process that needs them. The TOML file, the DAG and the Spark job all carry this one form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

OnSlotLost = Literal["error", "resync"]


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table, or a pattern of tables (`schema.table`, where `*` matches within a segment)."""

    name: str
    columns: tuple[str, ...] = ()
    where: str | None = None
    insert_only: bool = False
    destination: str | None = None


@dataclass(frozen=True, slots=True)
class SourceSpec:
    uri: str
    publication: str = ""
    manage_publication: bool = True
    on_slot_lost: OnSlotLost = "error"
    failover: bool = False


@dataclass(frozen=True, slots=True)
class DestinationSpec:
    """`type` is a built-in's name or `package.module:Class`; `options` go to it as they are."""

    type: str
    uri: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SparkSpec:
    master: str = "local[*]"
    submit: str = ""


@dataclass(frozen=True, slots=True)
class CopySpec:
    table_workers: int = 2
    range_bytes: int = 64 << 20
    group_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True)
class StreamSpec:
    memory: int = 256 << 20
    min_interval: float | None = None


@dataclass(frozen=True, slots=True)
class PipelineSpec:
    """One pipeline: where from, where to, which tables."""

    id: str
    tables: tuple[TableSpec, ...]
    source: SourceSpec
    destination: DestinationSpec
    exclude: tuple[str, ...] = ()
    state_uri: str | None = None
    spark: SparkSpec = SparkSpec()
    copy: CopySpec = CopySpec()
    stream: StreamSpec = StreamSpec()

    @property
    def publication(self) -> str:
        return self.source.publication or f"pgetl_{self.id}"

    @property
    def state(self) -> str:
        return self.state_uri or self.source.uri
