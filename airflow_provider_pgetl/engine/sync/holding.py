"""Whether the destination's tables are still those that this pipeline published.

Each write asks that itself. A table without changes is not written to, so it is asked here as well: by prepare, and
again and again while a worker runs. A table that another pipeline, or a person, has replaced or altered becomes
Errored, with whose it is and what is to be done.

A destination that was restored, or has failed over to a standby that lagged behind, is found by whoever reads positions
for a stream. While a worker runs, that may be long after: so its positions are held against what was seen of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from airflow_provider_pgetl.engine.changes.batch import TablePosition
from airflow_provider_pgetl.engine.destinations.protocol import Holding, Positions
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.findings import Finding
from airflow_provider_pgetl.engine.phases import FOLLOWED, Failed, phase_name
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state.protocol import DestinationMetadata
from airflow_provider_pgetl.engine.sync import upkeep
from airflow_provider_pgetl.engine.sync.events import apply_each
from airflow_provider_pgetl.engine.sync.failures import failure_of
from airflow_provider_pgetl.engine.sync.site import Site
from airflow_provider_pgetl.engine.tables import TableName


def lost(site: Site) -> Mapping[TableName, PgetlError]:
    """The tables, by the source's name, that are followed and that the destination would not have written to."""
    records = site.store.tables()
    destination = site.open_destination("watch")
    try:
        found = destination.lost(site.pipeline) if isinstance(destination, Holding) else {}
    finally:
        destination.shutdown()
    places = {table: site.store.destination_metadata(table) for table in records} if found else {}
    return {
        table: found[place.destination]
        for table, place in places.items()
        if place is not None and place.destination in found and phase_name(records[table].state.phase) in FOLLOWED
    }


def watch(site: Site) -> None:
    """Look once, and act. What was reset meanwhile is left alone, by its generation."""
    site.store.load()
    records = site.store.tables()
    failures = {table: failure_of(error, site.store.now()) for table, error in lost(site).items()}
    apply_each(
        site,
        {
            table: Failed(records[table].state.generation, one.reason, one.solution, one.retry_policy)
            for table, one in failures.items()
        },
    )


def expect_not_set_back(site: Site) -> None:
    """Raise SLOT_LOST where the destination has tables that are followed before where they were seen, or has no
    position of them any more. What was seen is read before the destination is, which only moves on; a table that was
    reset meanwhile, or is `lost`, is another matter."""
    site.store.load()
    records = site.store.tables()
    states = {t: one.state for t, one in records.items() if phase_name(one.state.phase) in FOLLOWED}
    seen = upkeep.known_positions(states, {table: one.mark for table, one in records.items()})
    destination = site.open_destination("watch")
    try:
        if not isinstance(destination, Positions):
            return
        found = destination.positions(site.pipeline)
    finally:
        destination.shutdown()
    back = {table for table, at in seen.items() if _stands_before(at, site.store.destination_metadata(table), found)}
    if back:
        told = lost(site)
        site.store.load()
        now = site.store.tables()
        back = {t for t in back - told.keys() if t in now and now[t].state.generation == states[t].generation}
    if back:
        raise set_back(back)


def _stands_before(seen: Boundary, place: DestinationMetadata | None, found: Mapping[TableName, TablePosition]) -> bool:
    if place is None:
        return False
    there = found.get(place.destination)
    return there is None or there.position < seen


def set_back(tables: Collection[TableName]) -> PgetlError:
    names = ", ".join(map(str, sorted(tables)))
    message = f"The destination has {names} before where it had come already: it was restored."
    return PgetlError(ErrorKind.SLOT_LOST, message)


def findings(site: Site) -> list[Finding]:
    """A run goes on without these tables."""
    return [
        Finding(error.message, error.remedy, "warning", table=str(table), kind=error.kind)
        for table, error in lost(site).items()
    ]
