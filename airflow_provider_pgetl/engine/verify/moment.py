"""A consistent point at which both sides can be compared while both are being written to.

    slot, snapshot at L ─▶ all before L is in the destination ─▶ its snapshots, each at a position P ─▶ changes between

* A temporary slot with an exported snapshot gives the consistent point L. A plain snapshot with an LSN beside it is not
  exact: under synchronous replication, a commit is sent through a slot before readers see it.
* The destination is read only when every change below L is in it: either a table's own position has reached L, or the
  acknowledged position has, which guarantees every change of every followed table. Then a table's rows are the source's
  at L, except for its changes from L on to its own position P. These changes are in the temporary slot, which is read
  up to P and has ended before any row is compared.
* If nothing streams, changes below L are not waited for. What the destination lacks is then in the pipeline's own slot,
  from its confirmed position on. That slot is read as far as L, and nothing is confirmed.

The temporary slot ends with its session in every case. A table that was not Ready under one generation, from before the
slot was read until after the destination's snapshot was taken, is not compared: nothing guarantees its state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
from psycopg import pq

from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.destinations.protocol import Destination, Positions, Readable, TableSnapshot
from airflow_provider_pgetl.engine.merging import backlog
from airflow_provider_pgetl.engine.model.errors import Backoff, ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import Ready, phase_name
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema, written
from airflow_provider_pgetl.engine.source.catalog import PublishedTable, read_tables
from airflow_provider_pgetl.engine.source.connecting import Connection, server_errors
from airflow_provider_pgetl.engine.source.range_reading import imported_snapshot
from airflow_provider_pgetl.engine.source.server import read_lineage
from airflow_provider_pgetl.engine.source.slots import CreatedSlot, Slot, create_slot, find_slot, temporary_slot
from airflow_provider_pgetl.engine.state.decisions import CEILING, furthest_seen
from airflow_provider_pgetl.engine.state.store import TableRecord
from airflow_provider_pgetl.engine.status_reader import seen_by_readers
from airflow_provider_pgetl.engine.transform.tables import TableTransform, fingerprint_of, rules_changed
from airflow_provider_pgetl.engine.verify.source_rows import Changed, ChangedKeys, ReadLimit, SourceTable, Window
from airflow_provider_pgetl.engine.wal.replication_stream import ReplicationStream

_BACKOFF = Backoff(0.1, 2.0)


@dataclass(frozen=True, slots=True)
class Patience:
    """Timeouts in seconds: `slot` for open writing transactions at the source, `arrival` for changes on their way to
    the destination."""

    slot: float = 60.0
    arrival: float = 120.0


@dataclass(frozen=True, slots=True)
class Pair:
    """A table on both sides. `changed`: the rows that were changed in between. `awaited`: these changes have not
    reached the destination, and nothing streams that would deliver them."""

    source: SourceTable
    destination: TableSnapshot
    changed: Changed
    awaited: bool = False

    @property
    def compared(self) -> Sequence[str]:
        """The columns that the destination has of the source."""
        none = pa.table({name: pa.array([], pa.binary()) for name in self.source.published.schema.names})
        names: list[str] = self.destination.held(none).column_names
        return names


@dataclass(frozen=True, slots=True)
class Moment:
    """`position`: L; `at`: the time of the source's clock when the source was there, in seconds since the Unix epoch.
    For a table that cannot be compared, `tables` contains the reason."""

    position: Boundary
    at: float
    tables: Mapping[TableName, Pair | PgetlError]


class ChangedState(PgetlError):
    """The table was rolled back or reset, or has become Errored, while it was compared."""

    def __init__(self, table: TableName) -> None:
        super().__init__(ErrorKind.TABLE_REWRITTEN, f"{written(table)} was taken back meanwhile.", table=str(table))


class MovedOn(PgetlError):
    """A worker has begun to stream meanwhile, so that the moment is no longer valid."""

    def __init__(self) -> None:
        super().__init__(
            ErrorKind.TABLE_REWRITTEN, "the pipeline began to be streamed meanwhile.", remedy="Verify again."
        )


def unready(record: TableRecord | None, table: TableName) -> PgetlError | None:
    """Returns why nothing guarantees the table's state in the destination; None if it can be compared."""
    if record is None:
        message = f"{written(table)} is no table of the pipeline."
        return PgetlError(ErrorKind.USAGE, message, remedy="`pgetl status` lists its tables.")
    if record.selection is not None and record.selection.insert_only:
        message = "only inserts are replicated (insert_only), so that rows which were changed since differ rightly."
        return PgetlError(ErrorKind.USAGE, message, remedy="Compare it by a query of your own.")
    if not isinstance(record.state.phase, Ready):
        message = f"it is {phase_name(record.state.phase)}, and not Ready."
        return PgetlError(
            ErrorKind.USAGE, message, remedy="`pgetl run FILE` brings it there, or `pgetl status` says why not."
        )
    return None


def _as_altered(published: PublishedTable, version: TableSchema) -> PublishedTable | PgetlError:
    names = {column.number: column.name for column in version.columns if column.number}
    if len(names) < len(version.columns):
        return published
    numbers = {name: number for number, name in names.items()}
    columns = tuple(column for column in published.schema.columns if column.number in names)
    unread = tuple(column.name for column in published.schema.columns if column.number not in names)
    is_another = bool(numbers.keys() & set(unread)) or bool(set(published.schema.key) & set(unread))
    if is_another or any(names[column.number] != column.name for column in columns):
        message = f"{written(published.table)} was altered at the source, and no row of it has come since."
        remedy = "Its table in the destination is altered with the next one; then verify again."
        return PgetlError(ErrorKind.SCHEMA, message, remedy=remedy, table=str(published.table))
    return replace(published, schema=replace(published.schema, columns=columns), unread=unread)


@contextmanager
def opened_moment(
    context: PipelineContext,
    records: Mapping[TableName, TableRecord],
    rate: ReadLimit,
    patience: Patience,
    stopped: Callable[[], bool],
) -> Iterator[Moment]:
    """Yields the moment for tables that are Ready according to `records`. Sessions and snapshots last until the context
    manager is left."""
    with ExitStack() as stack:
        watcher = stack.enter_context(closing(context.connect("verify watcher")))
        replication = context.connect_replication("verify slot")
        stack.callback(replication.finish)
        opening = _OpeningMoment(context, records, watcher, replication, patience, stopped)
        at, created = opening.create_slot()
        reader = stack.enter_context(closing(context.connect("verify")))
        stack.enter_context(imported_snapshot(reader, created.snapshot))
        published = opening.read_published(reader)
        destination = stack.enter_context(context.destination("verify"))
        confirmed = opening.await_arrival(destination, created.consistent_point)
        published = opening.as_altered(destination, published)
        snapshots = stack.enter_context(opening.snapshots(destination, published))
        changed = opening.changed(created, published, snapshots, confirmed)
        tables: dict[TableName, Pair | PgetlError] = {}
        for table, known in published.items():
            if isinstance(known, PgetlError):
                tables[table] = known
                continue
            there = snapshots[opening.place(table)]
            if isinstance(there, PgetlError):
                tables[table] = there
                continue
            awaited = confirmed is not None and there.position < created.consistent_point
            source = SourceTable(reader, known, rate, opening.transform(known))
            tables[table] = Pair(source, there, changed[table], awaited)
        yield Moment(created.consistent_point, at, {**tables, **opening.taken_back()})


Published = Mapping[TableName, PublishedTable | PgetlError]
Snapshots = Mapping[TableName, TableSnapshot | PgetlError]


@dataclass(frozen=True, slots=True)
class _OpeningMoment:
    """The steps that open a moment, in their order."""

    context: PipelineContext
    records: Mapping[TableName, TableRecord]
    watcher: Connection
    replication: pq.abc.PGconn
    patience: Patience
    stopped: Callable[[], bool]

    def place(self, table: TableName) -> TableName:
        """Returns the table's name in the destination."""
        metadata = self.context.store.destination_metadata(table)
        return table if metadata is None else metadata.destination

    # -- the source

    def create_slot(self) -> tuple[float, CreatedSlot]:
        context = self.context
        self._expect_the_same_source()
        with server_errors("The source's clock could not be read"):
            row = self.watcher.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
        assert row is not None, "a clock answers"
        name = temporary_slot(context.pipeline, context.instance)
        created = create_slot(
            self.replication,
            self.watcher,
            name,
            export_snapshot=True,
            temporary=True,
            patience=self.patience.slot,
        )
        return float(row[0]), created

    def _expect_the_same_source(self) -> None:
        """Raises if the source is not the recorded one: positions of one source have no meaning in another."""
        recorded, furthest = self.context.store.pipeline().lineage, furthest_seen(self.context.store)
        if recorded is None:
            return
        present = read_lineage(self.replication, self.context.publications[0])
        branched = present.lineage.timeline != recorded.timeline
        slot = find_slot(self.watcher, self.context.apply_slot) if branched else None
        why = present.difference(recorded, furthest, (slot.confirmed if slot else None) or START)
        if why is not None:
            raise PgetlError(ErrorKind.LINEAGE, f"Nothing can be verified: {why}.")

    def read_published(self, reader: Connection) -> Published:
        """Returns each table as the publication sends it at the slot's consistent point; for a table that cannot be
        compared, the error."""
        found: dict[TableName, PublishedTable | PgetlError] = {}
        for table in self.records:
            try:
                (known,) = read_tables(reader, self.context.publications, [table])
                self._expect_rules(known)
                found[table] = known
            except PgetlError as error:
                if error.table is None:
                    raise
                found[table] = error
        return found

    def as_altered(self, destination: Destination, published: Published) -> Published:
        """Returns the tables with the columns that the destination's tables have by now. What was altered at the source
        is altered there with the table's next row: until then an added column is not compared."""
        if not isinstance(destination, Positions):
            return published
        self.context.store.load()
        positions, versions = destination.positions(self.context.pipeline), self.context.store.schemas()
        found: dict[TableName, PublishedTable | PgetlError] = {}
        for table, known in published.items():
            there, starts = positions.get(self.place(table)), sorted(versions.get(table, {}))
            if isinstance(known, PgetlError) or there is None or not starts:
                found[table] = known
                continue
            applied = max([start for start in starts if start < there.position], default=starts[0])
            found[table] = _as_altered(known, versions[table][applied])
        return found

    def _expect_rules(self, known: PublishedTable) -> None:
        """Raises if the table cannot be transformed as it was when it was copied."""
        selection = self.records[known.table].selection
        now = fingerprint_of(self.context.transforms, known.table)
        if selection is not None and selection.transform != now:
            raise rules_changed(known.table)
        self.transform(known)

    # -- arrival

    def await_arrival(self, destination: Destination, point: Boundary) -> Boundary | None:
        """Waits until every change of the tables below `point` is in the destination, and returns None. If nothing
        streams that would deliver the missing changes, returns at once the confirmed position of the pipeline's
        slot."""
        runtime = self.context.runtime
        deadline, looks = runtime.monotonic() + self.patience.arrival, 0
        while True:
            slot = self._apply_slot()
            if self._has_arrived(destination, slot, point):
                return None
            if slot.active_pid is None and not self._is_streamed():
                self._expect_merged(destination)
                assert slot.confirmed is not None, "an apply slot is made whole"
                return slot.confirmed
            if runtime.monotonic() > deadline or self.stopped():
                raise self._late(destination, point)
            looks += 1
            runtime.sleep(_BACKOFF.after(looks))

    def _apply_slot(self) -> Slot:
        slot = find_slot(self.watcher, self.context.apply_slot)
        if slot is None or slot.lost is not None:
            message = f"The slot {self.context.apply_slot}, by which the tables are followed, is not there any more."
            raise PgetlError(ErrorKind.SLOT_LOST, message)
        return slot

    def _is_streamed(self) -> bool:
        self.context.store.load()
        return self.context.store.lease() is not None and self.context.store.pipeline().paused is None

    def _has_arrived(self, destination: Destination, slot: Slot, point: Boundary) -> bool:
        """The acknowledged position is read first: the tables' positions, read afterwards, can only be further."""
        self.context.store.load()
        acknowledged = max(slot.confirmed or START, self.context.store.progress(CEILING) or START) >= point
        places = [self.place(table) for table in self.records]
        positions = seen_by_readers(destination, self.context.pipeline)
        behind = [place for place in places if positions.get(place, START) < point]
        return not behind or (
            acknowledged and not set(backlog(destination, self.context.pipeline)).intersection(behind)
        )

    def _expect_merged(self, destination: Destination) -> None:
        if backlog(destination, self.context.pipeline):
            message = "Changes have landed that are not merged into their tables yet."
            raise PgetlError(ErrorKind.USAGE, message, remedy="`pgetl merge FILE` first, then verify again.")

    def _late(self, destination: Destination, point: Boundary) -> PgetlError:
        message = f"Changes before {point} did not come to the destination within {self.patience.arrival:g} s."
        if backlog(destination, self.context.pipeline):
            return PgetlError(ErrorKind.USAGE, message, remedy="`pgetl merge FILE` first, then verify again.")
        remedy = "Look by `pgetl status FILE` what holds the stream up, or how far it is behind; then verify again."
        return PgetlError(ErrorKind.USAGE, message, remedy=remedy)

    # -- the destination, and what lies between

    def snapshots(self, destination: Destination, published: Published) -> AbstractContextManager[Snapshots]:
        if not isinstance(destination, Readable):
            raise unreadable(destination)
        schemas = [
            replace(found.schema, table=self.place(table))
            for table, found in published.items()
            if isinstance(found, PublishedTable)
        ]
        return destination.snapshots(self.context.pipeline, schemas)

    def changed(
        self, created: CreatedSlot, published: Published, snapshots: Snapshots, confirmed: Boundary | None
    ) -> Mapping[TableName, Changed]:
        """Returns, for each table, the rows that changed between the two snapshots. `confirmed`: the confirmed position
        of the pipeline's own slot if nothing streams."""
        point = created.consistent_point
        ahead, behind, found = [], [], {}
        for table, known in published.items():
            there = None if isinstance(known, PgetlError) else snapshots[self.place(table)]
            if isinstance(known, PgetlError) or there is None or isinstance(there, PgetlError):
                continue
            found[table] = Changed(known.schema.key or known.schema.names)
            if there.position > point:
                ahead.append(Window(known.schema, point, there.position, self.transform(known)))
            elif confirmed is not None and there.position < point:
                behind.append(Window(known.schema, there.position, point, self.transform(known)))
        found |= self._since(created, ahead)
        if confirmed is not None and behind:
            found |= self._not_yet_there(confirmed, behind)
        return found

    def transform(self, known: PublishedTable) -> TableTransform | None:
        """Returns the transformation of a table that `read_published` has returned, whose rules fit."""
        transforms = self.context.transforms
        return None if transforms is None else transforms.of(known.table, known.schema)

    def _since(self, created: CreatedSlot, windows: Collection[Window]) -> Mapping[TableName, Changed]:
        """Reads the changes from the temporary slot, over the session that holds it, which then ends."""
        changes = ChangedKeys(windows, created.consistent_point, self.context.runtime)
        if windows:
            with ReplicationStream.start(self.replication, created.name, self.context.publications) as stream:
                changes.read(stream, self.stopped)
        else:
            self.replication.finish()
        return changes.found

    def _not_yet_there(self, confirmed: Boundary, windows: Collection[Window]) -> Mapping[TableName, Changed]:
        """Reads the changes from the pipeline's own slot. Raises `MovedOn` if the slot has been streamed from
        meanwhile."""
        changes = ChangedKeys(windows, confirmed, self.context.runtime)
        slot = self.context.apply_slot
        try:
            with self.context.source.stream("verify", slot, self.context.publications, binary=False) as stream:
                if self._apply_slot().confirmed != confirmed:
                    raise MovedOn
                changes.read(stream, self.stopped)
        except PgetlError as error:
            if error.transient or error.kind is ErrorKind.SLOT_IN_USE:
                raise MovedOn from error
            raise
        return changes.found

    def taken_back(self) -> Mapping[TableName, PgetlError]:
        """Returns errors for the tables that were not Ready under the same generation all the time since `records` was
        read."""
        self.context.store.load()
        now = self.context.store.tables()
        return {
            table: ChangedState(table) for table, before in self.records.items() if _differs(before, now.get(table))
        }


def unreadable(destination: Destination) -> PgetlError:
    message = f"A destination of type {destination.name} cannot be read, so nothing can be verified in it."
    return PgetlError(ErrorKind.USAGE, message, remedy="Give its class the ability `Readable` (destinations.protocol).")


def _differs(before: TableRecord, now: TableRecord | None) -> bool:
    return now is None or not isinstance(now.state.phase, Ready) or now.state.generation != before.state.generation
