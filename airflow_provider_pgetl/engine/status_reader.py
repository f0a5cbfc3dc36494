"""Reads the status of a pipeline without changing anything.

The store is read first and must be reachable. Source and destination are read if they are reachable; what they cannot
report is listed as unknown. No function here waits for another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from airflow_provider_pgetl.engine.changes.batch import TablePosition
from airflow_provider_pgetl.engine.destinations.protocol import Destination, Merging, Positions
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import CATCHING_UP, FOLLOWED, Ready, phase_name
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.model.results import Lease, SlotStatus, Status, TableStatus, Whereabouts
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.runtime.processes import in_words, is_gone
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.server import flushed_position
from airflow_provider_pgetl.engine.source.slots import Slot, SlotName, group_slots, list_slots, slot_status
from airflow_provider_pgetl.engine.state.decisions import CEILING
from airflow_provider_pgetl.engine.state.store import Lag, Store, TableRecord
from airflow_provider_pgetl.engine.stream.lease import LEASE_SECONDS

_SAYING_SECONDS = 3.0  # a worker records its lag a little more often

ConnectToSource = Callable[[], Connection]
OpenDestination = Callable[[], AbstractContextManager[Destination]]


@dataclass(frozen=True, slots=True)
class SourceView:
    """The pipeline at the source. `said_lag`: the lag that the apply stream has just recorded in the store, in
    bytes."""

    wal_end: Boundary
    slots: Mapping[SlotName, Slot]
    said_lag: int | None


@dataclass(frozen=True, slots=True)
class DestinationView:
    """The pipeline in the destination, by the destination's names of the tables. `merged` is filled only if changes
    land before they are merged."""

    positions: Mapping[TableName, TablePosition] = field(default_factory=dict)
    merged: Mapping[TableName, Boundary] = field(default_factory=dict)


def read_status(pipeline: str, store: Store, connect: ConnectToSource, open_destination: OpenDestination) -> Status:
    """Returns everything that is known now. `connect` and `open_destination` raise `PgetlError` if the server cannot be
    reached."""
    store.load()
    unknown: list[str] = []
    record = store.pipeline()
    lease = store.lease()
    source = _look_at_source(pipeline, record.instance, connect, _said_lag(store.lag(), lease), unknown)
    destination = _look_at_destination(pipeline, open_destination, unknown)
    since, verified = store.since(), store.last_verified()
    tables = (
        replace(_table(each, since.get(table), store, source, destination), verified=verified.get(table))
        for table, each in sorted(store.tables().items())
    )
    return Status(
        pipeline,
        record.instance,
        record.epoch,
        tuple(tables),
        slots=None if source is None else _slots(source),
        wal_end=None if source is None else source.wal_end,
        lease=lease,
        lineage=record.lineage,
        unknown=tuple(unknown),
        paused=record.paused,
        streamed_by=None if lease is None else in_words(lease.holder),
    )


def _said_lag(lag: Lag | None, lease: Lease | None) -> int | None:
    """Returns the recorded lag; None unless the stream is alive and has recorded it at about the time when its lease
    was last renewed, or later."""
    if lag is None or lease is None or is_gone(lease.holder):
        return None
    return lag.bytes if lag.at > lease.expires - LEASE_SECONDS - _SAYING_SECONDS else None


def _look_at_source(
    pipeline: str, instance: str, connect: ConnectToSource, said_lag: int | None, unknown: list[str]
) -> SourceView | None:
    try:
        with connect() as connection:
            return SourceView(flushed_position(connection), list_slots(connection, pipeline, instance), said_lag)
    except PgetlError as error:
        unknown.append(f"Slots and lag, for the source could not be asked: {error.message}")
        return None


def _look_at_destination(pipeline: str, open_destination: OpenDestination, unknown: list[str]) -> DestinationView:
    try:
        with open_destination() as destination:
            positions = destination.positions(pipeline) if isinstance(destination, Positions) else {}
            if isinstance(destination, Merging) and destination.lands:
                return DestinationView(positions, destination.merged(pipeline))
            return DestinationView(positions)
    except PgetlError as error:
        unknown.append(f"Positions of tables, for the destination could not be asked: {error.message}")
        return DestinationView()


def seen_by_readers(destination: Destination, pipeline: str) -> Mapping[TableName, Boundary]:
    """Returns the position up to which readers see each table of the pipeline; an empty mapping if the destination does
    not record positions."""
    if isinstance(destination, Merging) and destination.lands:
        return destination.merged(pipeline)
    if isinstance(destination, Positions):
        return {table: found.position for table, found in destination.positions(pipeline).items()}
    return {}


def read_whereabouts(store: Store, table: TableName) -> Whereabouts | None:
    """Returns how far the table, which must be Ready, is in the destination, by what the store has recorded. Returns
    None if the pipeline has no such table."""
    store.load()
    record = store.tables().get(table)
    if record is None:
        return None
    place, lag = store.destination_metadata(table), store.lag()
    return Whereabouts(
        table,
        max(record.mark, store.progress(CEILING) or START),
        copied_rows=None if place is None else place.details.get("rows"),
        lag_bytes=None if lag is None else lag.bytes,
        lag_seconds=None if lag is None else lag.seconds,
    )


def read_changed_tables(pipeline: str, store: Store, destination: Destination, run: str) -> dict[TableName, str]:
    """See `Pipeline.changed_tables`."""
    store.load()
    records = store.tables().values()
    ready = {record.table: record for record in records if isinstance(record.state.phase, Ready)}
    positions = seen_by_readers(destination, pipeline)
    before, now = store.announced(run), {}
    for table, record in ready.items():
        place = store.destination_metadata(table)
        found = positions.get(table if place is None else place.destination)
        position = f"{record.state.generation}/{found}"
        if found is None or before.get(table) != position:
            now[table] = position
    return now


def _table(
    record: TableRecord, since: float | None, store: Store, source: SourceView | None, there: DestinationView
) -> TableStatus:
    metadata = store.destination_metadata(record.table)
    destination = None if metadata is None else metadata.destination
    found = there.positions.get(destination or record.table)
    position = None if found is None else found.position
    return TableStatus(
        record.table,
        record.state,
        destination,
        since=since,
        position=position,
        lag_bytes=None if source is None else _lag(record, source, position or START),
        merged=there.merged.get(destination or record.table),
        transformed={} if record.selection is None else record.selection.uses,
    )


def _lag(record: TableRecord, source: SourceView, position: Boundary) -> int | None:
    """Returns how many bytes of WAL the table lags behind. The position of a table that rarely changes is far back, so
    the position that its slot has confirmed counts as well. An apply stream that is caught up confirms only now and
    then that the WAL of others contained nothing for it, so the lag that the stream recorded itself counts too."""
    slot = _slot_of(record, source.slots)
    if slot is None or slot.confirmed is None:
        return None
    lag = max(0, source.wal_end.lsn - max(position, slot.confirmed).lsn)
    streamed = phase_name(record.state.phase) in FOLLOWED and slot.active_pid is not None
    return lag if source.said_lag is None or not streamed else min(lag, source.said_lag)


def _slot_of(record: TableRecord, slots: Mapping[SlotName, Slot]) -> Slot | None:
    name, attempt = phase_name(record.state.phase), record.state.attempt
    if name in CATCHING_UP and attempt is not None:
        return group_slots(slots).get(attempt)
    if name in FOLLOWED:
        return next((slot for slot_name, slot in slots.items() if slot_name.attempt is None), None)
    return None


def _slots(source: SourceView) -> tuple[SlotStatus, ...]:
    return tuple(slot_status(name, slot, source.wal_end) for name, slot in source.slots.items())
