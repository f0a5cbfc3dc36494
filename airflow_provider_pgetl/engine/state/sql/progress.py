"""How far each worker has come: monotone, whoever writes last."""

from __future__ import annotations

from sqlalchemy import Connection, case, delete, select
from sqlalchemy.dialects.postgresql import insert

from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.recognition import Seen
from airflow_provider_pgetl.engine.state import rows
from airflow_provider_pgetl.engine.state.tables import progress


def read(connection: Connection, pipeline: int, worker: str) -> Boundary | None:
    query = select(progress.c.boundary).where(progress.c.pipeline == pipeline, progress.c.worker == worker)
    return connection.execute(query).scalar()


def read_all(connection: Connection, pipeline: int) -> dict[str, Seen]:
    found = connection.execute(select(progress).where(progress.c.pipeline == pipeline))
    return {row.worker: rows.seen_of(row) for row in found}


def record(connection: Connection, pipeline: int, worker: str, seen: Seen) -> Boundary:
    added = insert(progress).values(pipeline=pipeline, worker=worker, **rows.seen_values(seen))
    later = added.excluded.boundary > progress.c.boundary
    kept = {name: case((later, added.excluded[name]), else_=progress.c[name]) for name in rows.seen_values(seen)}
    stored = added.on_conflict_do_update(index_elements=["pipeline", "worker"], set_=kept)
    furthest: Boundary = connection.execute(stored.returning(progress.c.boundary)).scalar_one()
    return furthest


def forget(connection: Connection, pipeline: int, worker: str) -> None:
    connection.execute(delete(progress).where(progress.c.pipeline == pipeline, progress.c.worker == worker))
