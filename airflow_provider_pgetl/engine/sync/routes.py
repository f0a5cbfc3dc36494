"""From the relation that pgoutput speaks of to the table it is, its stored schema, and its place in the destination.

Rows are gathered with the route that the table had then, and written under its schema, whatever the store has learnt
since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state.protocol import Store
from airflow_provider_pgetl.engine.tables import TableName, TableSchema

LATEST = Boundary((1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class Route:
    """`schema` is what the destination sees: the stored schema under the destination's name of the table."""

    table: TableName
    schema: TableSchema
    relation: int


class Routes:
    """Read from the store of each table that has changed there; by one thread at a time, while others look up."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._by_relation: dict[int, Route] = {}
        self._by_table: dict[TableName, Route] = {}
        self._by_destination: dict[TableName, Route] = {}

    def refresh(self, store: Store, tables: Iterable[TableName]) -> None:
        for table in tables:
            known, fresh = self._by_table.get(table), self._route(store, table)
            if fresh == known:
                continue
            if fresh is not None:
                self._enter(fresh)
            if known is not None:
                self._remove(known)

    def _enter(self, route: Route) -> None:
        self._by_table[route.table] = route
        self._by_relation[route.relation] = route
        self._by_destination[route.schema.table] = route

    def _remove(self, route: Route) -> None:
        """Unless another has taken its place."""
        if self._by_table.get(route.table) is route:
            del self._by_table[route.table]
        if self._by_relation.get(route.relation) is route:
            del self._by_relation[route.relation]
        if self._by_destination.get(route.schema.table) is route:
            del self._by_destination[route.schema.table]

    def _route(self, store: Store, table: TableName) -> Route | None:
        schema = store.schema(table, LATEST)
        metadata = store.destination_metadata(table)
        if table not in store.tables() or schema is None or metadata is None:
            return None
        return Route(table, replace(schema, table=metadata.destination), schema.relation)

    def known_destination(self, table: TableName) -> TableName | None:
        route = self._by_table.get(table)
        return route.schema.table if route is not None else None

    def destination_name(self, table: TableName) -> TableName:
        return self._by_table[table].schema.table

    def of_relation(self, relation: int) -> Route | None:
        return self._by_relation.get(relation)

    def source_of(self, destination: str) -> TableName | None:
        """The source's name of the table that the destination calls `destination`."""
        named = (route.table for there, route in list(self._by_destination.items()) if str(there) == destination)
        return next(named, None)

    def source_at(self, destination: TableName) -> TableName | None:
        """The same by the destination's whole name."""
        route = self._by_destination.get(destination)
        return None if route is None else route.table

    def target(self, table: TableName, generation: int) -> Target:
        return Target(self._pipeline, self._by_table[table].schema, generation)
