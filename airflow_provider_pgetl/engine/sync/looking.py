"""A look at a pipeline: what the store knows, and what the source and the destination say if they can be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_pgetl.engine.destinations.protocol import Positions
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.phases import past_init, phase_name
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.source.slot_names import SlotName
from airflow_provider_pgetl.engine.source.slots import Slot, list_slots
from airflow_provider_pgetl.engine.state.protocol import TableRecord
from airflow_provider_pgetl.engine.status import SlotStatus, Status, TableStatus
from airflow_provider_pgetl.engine.sync.site import Site
from airflow_provider_pgetl.engine.sync.worker import flushed_position
from airflow_provider_pgetl.engine.tables import TableName


@dataclass(frozen=True, slots=True)
class _Source:
    wal_end: Boundary
    slots: Mapping[SlotName, Slot]


def look(site: Site) -> Status:
    """Raises only if the store cannot be read: without it there is nothing to show."""
    site.store.load()
    unknown: list[str] = []
    source = _ask_source(site, unknown)
    positions = _ask_destination(site, unknown)
    record = site.store.pipeline()
    return Status(
        pipeline=site.pipeline,
        instance=record.instance,
        epoch=record.epoch,
        tables=tuple(_table(site, one, positions, source) for _, one in sorted(site.store.tables().items())),
        slots=None if source is None else tuple(_slot(*pair, source.wal_end) for pair in source.slots.items()),
        wal_end=None if source is None else source.wal_end,
        lease=site.store.lease(),
        lineage=record.lineage,
        unknown=tuple(unknown),
    )


def _ask_source(site: Site, unknown: list[str]) -> _Source | None:
    try:
        with site.connect("status") as connection:
            return _Source(flushed_position(connection), list_slots(connection, site.pipeline, site.instance))
    except PgetlError as error:
        unknown.append(f"The source could not be asked: {error.message}")
        return None


def _ask_destination(site: Site, unknown: list[str]) -> Mapping[TableName, Boundary]:
    """By the destination's names. What it cannot say is taken from the store's high-water marks."""
    try:
        destination = site.open_destination("status")
        try:
            found = destination.positions(site.pipeline) if isinstance(destination, Positions) else {}
        finally:
            destination.shutdown()
    except PgetlError as error:
        unknown.append(f"The destination could not be asked: {error.message}")
        return {}
    return {table: there.position for table, there in found.items()}


def _table(
    site: Site, record: TableRecord, positions: Mapping[TableName, Boundary], source: _Source | None
) -> TableStatus:
    metadata = site.store.destination_metadata(record.table)
    history = site.store.history(record.table)
    place = None if metadata is None else metadata.destination
    position = _position(record, positions.get(place) if place else None)
    return TableStatus(
        record.table,
        record.state,
        place,
        history[-1].at if history else None,
        position,
        _lag(record, position, source),
    )


def _position(record: TableRecord, there: Boundary | None) -> Boundary | None:
    return (there or record.high_water) if past_init(record.state) else None


def _lag(record: TableRecord, position: Boundary | None, source: _Source | None) -> int | None:
    """A quiet table has nothing to wait for once its stream's slot is confirmed beyond it."""
    if source is None or position is None or phase_name(record.state.phase) == "Errored":
        return None
    confirmed = [s.confirmed for n, s in source.slots.items() if _carries(n, record) and s.confirmed is not None]
    reached = max([position, *confirmed])
    return max(0, source.wal_end.lsn - reached.lsn)


def _carries(name: SlotName, record: TableRecord) -> bool:
    followed = phase_name(record.state.phase) in ("SyncDone", "Ready")
    return name.attempt is None if followed else name.attempt == record.state.attempt


def _slot(name: SlotName, slot: Slot, wal_end: Boundary) -> SlotStatus:
    retained = None if slot.restart is None else max(0, wal_end.lsn - slot.restart.lsn)
    return SlotStatus(
        slot.name,
        "apply" if name.attempt is None else f"c{name.attempt}",
        slot.active_pid is not None,
        slot.confirmed,
        retained,
        slot.wal_status,
        slot.lost,
    )
