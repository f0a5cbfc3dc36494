"""One group's tables on the destination's side and in the store, from begin to publication.

Where the destination copies atomically, the old table stays until the new one is published. Where it does not, the old
table goes first; the store forgets what it knew of it only after that, so that a drop that has to be repeated still
finds what there was to drop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations.protocol import AtomicCopy, Destination, RangeCopy, RangeRows
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.source.catalog import PublishedTable
from airflow_provider_pgetl.engine.state.protocol import DestinationMetadata, Store
from airflow_provider_pgetl.engine.sync.copying.rows import no_rows
from airflow_provider_pgetl.engine.tables import TableName, TableSchema


@dataclass(frozen=True, slots=True)
class Staging:
    """For the thread of the copy's driver. Every step may be repeated."""

    destination: Destination
    store: Store
    attempt: int
    boundary: Boundary

    def begin(self, published: PublishedTable, target: Target) -> None:
        """Make room for the rows, and store what was found in the snapshot."""
        table = published.table
        if isinstance(self.destination, AtomicCopy):
            self.destination.begin_copy(target, self.attempt)
        else:
            self.destination.drop_table_for_copy(self._earlier(table) or target.schema)
        self.store.clear_copy_state(table)
        self.store.register(table, published.schema.relation, published.membership)
        self.store.store_schema(table, self.boundary, published.schema)
        self._note_place(table, target, applied=False, details={})
        if not isinstance(self.destination, RangeCopy | RangeRows):
            self.destination.write_table_rows(target.schema, no_rows(target.schema))

    def publish(self, table: TableName, target: Target, rows: int) -> None:
        """`rows`: how many the source has sent and the destination has stored."""
        if isinstance(self.destination, AtomicCopy):
            self.destination.finish_copy(target, self.attempt, self.boundary)
        self._note_place(table, target, applied=True, details={"rows": rows})

    def abort(self, target: Target) -> None:
        if isinstance(self.destination, AtomicCopy):
            self.destination.abort_copy(target, self.attempt)

    def _note_place(self, table: TableName, target: Target, *, applied: bool, details: Mapping[str, Any]) -> None:
        metadata = DestinationMetadata(target.schema.table, self.boundary, applied, details)
        self.store.store_destination_metadata(table, metadata)

    def _earlier(self, table: TableName) -> TableSchema | None:
        """The table as the destination was last told of it, under its name there."""
        versions = self.store.schemas().get(table)
        place = self.store.destination_metadata(table)
        if not versions or place is None:
            return None
        return replace(versions[max(versions)], table=place.destination)
