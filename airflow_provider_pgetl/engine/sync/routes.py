"""From the relation that pgoutput speaks of to the table it is, its stored schema, and its place in the destination.

Rows are gathered with the route that the table had then, and written under its schema, whatever the store has learnt
since.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state.protocol import Store, TableRecord
from airflow_provider_pgetl.engine.tables import TableName, TableSchema

_LATEST = Boundary((1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class Route:
    """`schema` is what the destination sees: the stored schema under the destination's name of the table."""

    table: TableName
    schema: TableSchema
    relation: int


class Routes:
    """Read anew from the store whenever tables have changed there."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._by_relation: dict[int, Route] = {}
        self._by_table: dict[TableName, Route] = {}

    def refresh(self, store: Store) -> None:
        routes = [route for record in store.tables().values() if (route := self._route(store, record))]
        self._by_relation = {route.relation: route for route in routes}
        self._by_table = {route.table: route for route in routes}

    def _route(self, store: Store, record: TableRecord) -> Route | None:
        schema = store.schema(record.table, _LATEST)
        metadata = store.destination_metadata(record.table)
        if schema is None or metadata is None:
            return None
        known = self._by_table.get(record.table)
        fresh = Route(record.table, replace(schema, table=metadata.destination), schema.relation)
        return known if known == fresh else fresh

    def known_destination(self, table: TableName) -> TableName | None:
        route = self._by_table.get(table)
        return route.schema.table if route is not None else None

    def destination_name(self, table: TableName) -> TableName:
        return self._by_table[table].schema.table

    def of_relation(self, relation: int) -> Route | None:
        return self._by_relation.get(relation)

    def source_of(self, destination: str) -> TableName | None:
        """The source's name of the table that the destination calls `destination`."""
        for route in self._by_table.values():
            if str(route.schema.table) == destination:
                return route.table
        return None

    def target(self, table: TableName, generation: int) -> Target:
        return Target(self._pipeline, self._by_table[table].schema, generation)
