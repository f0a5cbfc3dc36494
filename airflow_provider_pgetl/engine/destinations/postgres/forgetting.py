"""Beginning anew with a pipeline: what is remembered of its writers goes, its tables stay."""

from __future__ import annotations

from airflow_provider_pgetl.engine.destinations.postgres import locks, metadata, staging
from airflow_provider_pgetl.engine.destinations.postgres.session import Session


def forget(session: Session, pipeline: str) -> bool:
    """One transaction that no batch and no range of the pipeline overlaps. A writer that comes later finds no epoch.
    What is empty then, for no other pipeline uses it, is taken away."""
    if not metadata.present(session):
        return False
    with session.transaction():
        locks.take_over(session, locks.of_pipeline(pipeline))
        tables = metadata.records(session, pipeline)
        for table in sorted(tables):
            locks.take_over(session, locks.of_table(pipeline, table))
            staging.drop_all(session, pipeline, table)
        known = metadata.forget(session, pipeline)
        metadata.withdraw(session)
    return known
