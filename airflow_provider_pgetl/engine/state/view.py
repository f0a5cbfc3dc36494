"""The cache of a store object: what it read from the durable side at its last load.

A `View` is frozen. It is replaced as a whole, never changed: readers need no lock, and a view that was returned stays
as it was. Both stores read through `CachedReads`, so that they are stale in the same way: a view shows the writes of
its own store at once, those of others only after `load()` or a `wait()` that returned True.

`revision` counts the changes of which others are notified, `change` all changes. A view is *at* a revision when it
shows everything up to it. A write of its own store advances it only if nothing else was written in between, so that a
missed change is always noticed, and a later load reads everything since.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from airflow_provider_pgetl.engine.model.phases import Event, Refused, TableState, transition
from airflow_provider_pgetl.engine.model.positions import NO_MARK, Boundary, HighWater
from airflow_provider_pgetl.engine.model.tables import CopiedSelection, TableName, TableSchema
from airflow_provider_pgetl.engine.state.store import (
    ChangedTables,
    DestinationMetadata,
    FoundTable,
    PipelineRecord,
    Registration,
    TableRecord,
)

# -- A table's schemas as they are stored: parsed into `TableSchema` when one is first asked for. ----------------------

Versions = Mapping[Boundary, TableSchema]


class StoredVersions(Versions):
    """Versions of a schema, by the boundary from which each is valid."""

    def __init__(self, definitions: Mapping[Boundary, str]) -> None:
        """`definitions`: their JSON, each kept until it is parsed."""
        self._versions: dict[Boundary, str | TableSchema] = dict(definitions)

    def __getitem__(self, valid_from: Boundary) -> TableSchema:
        schema = self._versions[valid_from]
        if isinstance(schema, str):
            schema = self._versions[valid_from] = TableSchema.from_json(json.loads(schema))
        return schema

    def __iter__(self) -> Iterator[Boundary]:
        return iter(self._versions)

    def __len__(self) -> int:
        return len(self._versions)


# -- View. -------------------------------------------------------------------------------------------------------------

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class View:
    """The cached part of a pipeline's state."""

    pipeline: PipelineRecord
    revision: int = 0
    change: int = 0
    tables: Mapping[TableName, TableRecord] = field(default_factory=dict)
    schemas: Mapping[TableName, Versions] = field(default_factory=dict)
    destinations: Mapping[TableName, DestinationMetadata] = field(default_factory=dict)

    def after(self, revision: int, change: int) -> View:
        """Returns this view, which shows the store's own write, as being at `change`, and at `revision` if others are
        notified of it; returns it unchanged if something else was written in between."""
        if change != self.change + 1 or revision not in (self.revision, self.revision + 1):
            return self
        return replace(self, revision=revision, change=change)

    @property
    def names(self) -> frozenset[TableName]:
        return frozenset().union(self.tables, self.schemas, self.destinations)

    def with_tables(self, records: Iterable[TableRecord]) -> View:
        return replace(self, tables={**self.tables, **{record.table: record for record in records}})

    def with_acknowledged(self, generations: Mapping[TableName, int]) -> View:
        return self.with_tables(
            replace(self.tables[table], acknowledged=max(self.tables[table].acknowledged, generation))
            for table, generation in generations.items()
            if table in self.tables
        )

    def with_high_water(self, positions: Mapping[TableName, HighWater]) -> View:
        return self.with_tables(
            replace(self.tables[table], high_water=max(self.tables[table].high_water, position))
            for table, position in positions.items()
            if table in self.tables
        )

    def with_pipeline(self, **changes: Any) -> View:
        return replace(self, pipeline=replace(self.pipeline, **changes))

    def with_schema(self, table: TableName, valid_from: Boundary, schema: TableSchema) -> View:
        versions = {**self.schemas.get(table, {}), valid_from: schema}
        return replace(self, schemas={**self.schemas, table: versions})

    def without_schemas(self, table: TableName, valid_from: Collection[Boundary]) -> View:
        versions = self.schemas.get(table, {})
        kept = {start: versions[start] for start in versions if start not in valid_from}
        return replace(self, schemas={**self.schemas, table: kept})

    def with_found(self, found: Mapping[TableName, FoundTable]) -> View:
        """Returns the view with the tables whose copy has begun; tables that are not registered are ignored."""
        known = {table: one for table, one in found.items() if table in self.tables}
        records = (
            replace(self.tables[table], relation=one.relation, membership=one.membership, high_water=NO_MARK)
            for table, one in known.items()
        )
        return replace(
            self.with_tables(records),
            schemas={**self.schemas, **{table: {one.valid_from: one.schema} for table, one in known.items()}},
            destinations={**self.destinations, **{table: one.place for table, one in known.items()}},
        )

    def with_destinations(self, places: Mapping[TableName, DestinationMetadata]) -> View:
        return replace(self, destinations={**self.destinations, **places})

    def without_copy_state(self, table: TableName) -> View:
        tables = dict(self.tables)
        if table in tables:
            tables[table] = replace(tables[table], high_water=NO_MARK)
        return replace(
            self, tables=tables, schemas=_without(self.schemas, table), destinations=_without(self.destinations, table)
        )

    def without_table(self, table: TableName) -> View:
        return replace(self.without_copy_state(table), tables=_without(self.tables, table))


def durable(metadata: DestinationMetadata) -> DestinationMetadata:
    """Returns the metadata in the form in which any store returns it: the details are JSON (a tuple becomes a list).
    Raises an error at once if they cannot be."""
    return replace(metadata, details=json.loads(json.dumps(dict(metadata.details), allow_nan=False)))


def _without(mapping: Mapping[TableName, V], table: TableName) -> Mapping[TableName, V]:
    return {key: value for key, value in mapping.items() if key != table}


class CachedReads(ABC):
    """The reads of the store protocols that are answered from the view."""

    _view: View
    _readers: tuple[ChangedTables, ...] = ()

    def changed_tables(self) -> ChangedTables:
        """Returns an object that collects, from now on, every table that this store object shows differently."""
        reader = ChangedTables()
        self._readers = (*self._readers, reader)
        return reader

    def _show(self, view: View, changed: Iterable[TableName]) -> None:
        """The view is set before the names are added, so that a reader that takes the names sees at least their
        changes."""
        self._view = view
        names = frozenset(changed)
        for reader in self._readers if names else ():
            reader.add(names)

    def register(
        self, table: TableName, relation: int, membership: int | None, selection: CopiedSelection | None = None
    ) -> TableRecord:
        return self.register_all({table: Registration(relation, membership, selection)})[table]

    @abstractmethod
    def register_all(self, tables: Mapping[TableName, Registration]) -> Mapping[TableName, TableRecord]:
        """See `Store`."""

    def record_completion(self, run: str, task: str) -> None:
        self.record_completions(run, [task])

    @abstractmethod
    def record_completions(self, run: str, tasks: Collection[str]) -> None:
        """See `Store`."""

    @abstractmethod
    def store_places(self, places: Mapping[TableName, DestinationMetadata]) -> None:
        """See `Store`."""

    def pipeline(self) -> PipelineRecord:
        return self._view.pipeline

    def changes(self) -> int:
        return self._view.change

    def tables(self) -> Mapping[TableName, TableRecord]:
        return self._view.tables

    def schema(self, table: TableName, at: Boundary) -> TableSchema | None:
        """Returns the version with the largest boundary at or before `at`."""
        versions = self._view.schemas.get(table, {})
        valid_from = max((start for start in versions if start <= at), default=None)
        return None if valid_from is None else versions[valid_from]

    def schemas(self) -> Mapping[TableName, Versions]:
        return self._view.schemas

    def destination_metadata(self, table: TableName) -> DestinationMetadata | None:
        return self._view.destinations.get(table)


# -- Applying events to several tables at once: to all, or to none. ----------------------------------------------------
#
# Both stores decide here, so that they cannot differ: `memory_store` under its lock, `postgres_store` between `select …
# for update` and the write. Pure; a table is registered if its state is given.

HISTORY_KEPT = 200
"""Entries of history kept per table, the present one included; a table that fails and is retried for ever must not
fill the state database."""


def take(
    states: Mapping[TableName, TableState], events: Mapping[TableName, Event]
) -> Mapping[TableName, TableState] | Refused:
    """Returns the states after the events, or the first refusal in the order of table names."""
    taken: dict[TableName, TableState] = {}
    for table in sorted(events):
        if table not in states:
            return Refused(f"{table} is not registered")
        after = transition(states[table], events[table])
        if isinstance(after, Refused):
            return Refused(f"{table}: {after.why}")
        taken[table] = after
    return taken


def take_each(
    states: Mapping[TableName, TableState], events: Mapping[TableName, Event]
) -> Mapping[TableName, TableState | Refused]:
    """Returns the result for each table separately."""
    unknown = {table: Refused(f"{table} is not registered") for table in events if table not in states}
    return unknown | {table: transition(states[table], events[table]) for table in events if table in states}


def superseded(present: int, epoch: int | None) -> Refused | None:
    """Returns why a worker of this epoch may send no events, None if it may: a hand-over that it is part of now belongs
    to another worker."""
    if epoch is None or epoch == present:
        return None
    return Refused(f"epoch {epoch} was superseded by {present}")
