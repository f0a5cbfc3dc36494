"""What is known of the history of the source that the pipeline follows."""

from __future__ import annotations

from airflow_provider_pgetl.engine.phases import SyncDone
from airflow_provider_pgetl.engine.positions import START, Boundary
from airflow_provider_pgetl.engine.state.protocol import StateStore


def furthest_seen(store: StateStore) -> Boundary:
    """How far the source's WAL was ever seen. Marks of tables that are to be copied again say nothing: they may be of a
    history that was given up."""
    records = store.tables().values()
    marks = [record.mark for record in records]
    arrived = [record.state.phase.boundary for record in records if isinstance(record.state.phase, SyncDone)]
    return max([START, *marks, *arrived, *(seen.upto for seen in store.seen().values())])
