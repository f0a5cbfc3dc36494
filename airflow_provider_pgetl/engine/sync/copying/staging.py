"""One group's tables on the destination's side and in the store, from begin to publication.

Where the destination copies atomically, the old table stays until the new one is published. Where it does not, the old
table goes first; the store forgets what it knew of it only after that, so that a drop that has to be repeated still
finds what there was to drop.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations.protocol import Announced, AtomicCopy, Destination, RangeCopy, RangeRows
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.source.catalog import PublishedTable
from airflow_provider_pgetl.engine.state.protocol import DestinationMetadata, FoundTable, Store
from airflow_provider_pgetl.engine.sync.copying.book import TableCopy
from airflow_provider_pgetl.engine.sync.copying.rows import no_rows
from airflow_provider_pgetl.engine.tables import TableName, TableSchema


@dataclass(frozen=True, slots=True)
class Staging:
    """For the thread of the copy's driver. Every step may be repeated."""

    destination: Destination
    store: Store
    attempt: int
    boundary: Boundary

    def announce(self, targets: Collection[Target]) -> None:
        """Before room is made for their rows."""
        if isinstance(self.destination, Announced):
            self.destination.announce_copies(targets, self.attempt)

    def make_room(self, table: TableName, target: Target) -> None:
        """For the rows of one table, in the destination."""
        if isinstance(self.destination, AtomicCopy):
            self.destination.begin_copy(target, self.attempt)
        else:
            self.destination.drop_table_for_copy(self._earlier(table) or target.schema)

    def record_found(self, found: Collection[tuple[PublishedTable, Target]]) -> None:
        """In the store, what was found of the tables in the snapshot."""
        tables = {
            published.table: FoundTable(
                published.schema.relation,
                published.membership,
                self.boundary,
                published.schema,
                DestinationMetadata(target.schema.table, self.boundary, applied=False),
            )
            for published, target in found
        }
        self.store.begin_copies(tables)

    def make_empty(self, target: Target) -> None:
        """A table without rows comes to exist, too."""
        if not isinstance(self.destination, RangeCopy | RangeRows):
            self.destination.write_table_rows(target.schema, no_rows(target.schema))

    def publish(self, target: Target, ranges: int | None) -> None:
        if isinstance(self.destination, AtomicCopy):
            self.destination.finish_copy(target, self.attempt, self.boundary, ranges)

    def record_published(self, copies: Mapping[TableName, TableCopy]) -> None:
        """In the store, how many rows the source has sent of each table and the destination has stored, and how many
        bytes of the table's heap were read for them."""
        self.store.store_places({table: self._place(copy) for table, copy in copies.items()})

    def _place(self, copy: TableCopy) -> DestinationMetadata:
        details = {"rows": copy.rows, "bytes": copy.bytes_done}
        return DestinationMetadata(copy.target.schema.table, self.boundary, True, details)

    def abort(self, target: Target) -> None:
        if isinstance(self.destination, AtomicCopy):
            self.destination.abort_copy(target, self.attempt)

    def _earlier(self, table: TableName) -> TableSchema | None:
        """The table as the destination was last told of it, under its name there."""
        versions = self.store.schemas().get(table)
        place = self.store.destination_metadata(table)
        if not versions or place is None:
            return None
        return replace(versions[max(versions)], table=place.destination)
