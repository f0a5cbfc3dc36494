"""What a store object remembers of the durable side between two loads.

A `View` is a frozen picture that is replaced whole, never changed: readers need no lock, and what one was given stays
as it was. Both stores read through `CachedReads`, so that they are stale in the same way: a view shows its own
store's writes at once, those of others only after `load()` or a `wait()` that answered True.

`revision` counts the changes that others should hear of. A view is *at* a revision when it shows everything up to it;
an own write moves it on only if nobody else has written in between, so that a missed change is always noticed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from airflow_provider_pgetl.engine.positions import START, Boundary
from airflow_provider_pgetl.engine.state.protocol import DestinationMetadata, PipelineRecord, TableRecord
from airflow_provider_pgetl.engine.tables import TableName, TableSchema

Versions = Mapping[Boundary, TableSchema]
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class View:
    """The cached part of a pipeline's state."""

    pipeline: PipelineRecord
    revision: int = 0
    tables: Mapping[TableName, TableRecord] = field(default_factory=dict)
    schemas: Mapping[TableName, Versions] = field(default_factory=dict)
    destinations: Mapping[TableName, DestinationMetadata] = field(default_factory=dict)

    def after(self, revision: int) -> View:
        """This view once its own write has become `revision`."""
        return replace(self, revision=revision) if revision == self.revision + 1 else self

    def with_tables(self, records: Iterable[TableRecord]) -> View:
        return replace(self, tables={**self.tables, **{record.table: record for record in records}})

    def with_acknowledged(self, generations: Mapping[TableName, int]) -> View:
        return self.with_tables(
            replace(record, acknowledged=max(record.acknowledged, generations[table]))
            for table, record in self.tables.items()
            if table in generations
        )

    def with_high_water(self, positions: Mapping[TableName, Boundary]) -> View:
        return self.with_tables(
            replace(record, high_water=max(record.high_water, positions[table]))
            for table, record in self.tables.items()
            if table in positions
        )

    def with_pipeline(self, **changes: Any) -> View:
        return replace(self, pipeline=replace(self.pipeline, **changes))

    def with_schema(self, table: TableName, valid_from: Boundary, schema: TableSchema) -> View:
        versions = {**self.schemas.get(table, {}), valid_from: schema}
        return replace(self, schemas={**self.schemas, table: versions})

    def with_destination(self, table: TableName, metadata: DestinationMetadata) -> View:
        return replace(self, destinations={**self.destinations, table: metadata})

    def without_copy_state(self, table: TableName) -> View:
        tables = dict(self.tables)
        if table in tables:
            tables[table] = replace(tables[table], high_water=START)
        return replace(
            self, tables=tables, schemas=_without(self.schemas, table), destinations=_without(self.destinations, table)
        )

    def without_table(self, table: TableName) -> View:
        return replace(self.without_copy_state(table), tables=_without(self.tables, table))

    def pruned(self, keep_from: Mapping[TableName, Boundary]) -> View:
        kept = {
            table: kept_versions(versions, keep_from[table]) if table in keep_from else versions
            for table, versions in self.schemas.items()
        }
        return replace(self, schemas=kept)


def kept_versions(versions: Versions, boundary: Boundary) -> Versions:
    """The newest version at or before the boundary, and all later ones."""
    oldest = max((valid_from for valid_from in versions if valid_from <= boundary), default=START)
    return {valid_from: schema for valid_from, schema in versions.items() if valid_from >= oldest}


def durable(metadata: DestinationMetadata) -> DestinationMetadata:
    """As it comes back from any store: details are JSON (a tuple is a list there), or an error at once."""
    return replace(metadata, details=json.loads(json.dumps(dict(metadata.details), allow_nan=False)))


def _without(mapping: Mapping[TableName, V], table: TableName) -> Mapping[TableName, V]:
    return {key: value for key, value in mapping.items() if key != table}


class CachedReads:
    """The reads of the protocols that are answered from the view."""

    _view: View

    def pipeline(self) -> PipelineRecord:
        return self._view.pipeline

    def tables(self) -> Mapping[TableName, TableRecord]:
        return self._view.tables

    def schema(self, table: TableName, at: Boundary) -> TableSchema | None:
        """The version with the largest boundary at or before `at`."""
        versions = self._view.schemas.get(table, {})
        valid_from = max((start for start in versions if start <= at), default=None)
        return None if valid_from is None else versions[valid_from]

    def schemas(self) -> Mapping[TableName, Versions]:
        return self._view.schemas

    def destination_metadata(self, table: TableName) -> DestinationMetadata | None:
        return self._view.destinations.get(table)

    def applied_destination_metadata(self, table: TableName) -> DestinationMetadata | None:
        metadata = self._view.destinations.get(table)
        return metadata if metadata and metadata.applied else None
