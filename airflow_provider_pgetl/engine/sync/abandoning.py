"""Copies that will not be taken up again, because their table goes elsewhere or is not declared any more.

The next attempt at a table takes away what earlier ones staged; here there is none, at least not in that place.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations.protocol import AtomicCopy
from airflow_provider_pgetl.engine.phases import DataSync
from airflow_provider_pgetl.engine.state.protocol import TableRecord
from airflow_provider_pgetl.engine.sync.site import Site


def abandon_copies(site: Site, records: Iterable[TableRecord]) -> None:
    """Take away what copies under way have staged of these tables; one that is still alive is shut out by it. To be
    done while the store still knows them."""
    begun = [record for record in records if isinstance(record.state.phase, DataSync)]
    if not begun:
        return
    destination = site.open_destination("prepare")
    try:
        for record in begun:
            target, attempt = _target(site, record), record.state.attempt
            if target is not None and attempt is not None and isinstance(destination, AtomicCopy):
                destination.abort_copy(target, attempt)
    finally:
        destination.shutdown()


def _target(site: Site, record: TableRecord) -> Target | None:
    """Where the copy went; None if it had not come that far."""
    place = site.store.destination_metadata(record.table)
    versions = site.store.schemas().get(record.table)
    if place is None or not versions:
        return None
    return Target(site.pipeline, replace(versions[max(versions)], table=place.destination), record.state.generation)
