"""How far each worker has come: monotone, whoever writes last."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, select
from sqlalchemy.dialects.postgresql import insert

from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state.tables import progress


def read(connection: Connection, pipeline: int, worker: str) -> Boundary | None:
    query = select(progress.c.boundary).where(progress.c.pipeline == pipeline, progress.c.worker == worker)
    return connection.execute(query).scalar()


def record(connection: Connection, pipeline: int, worker: str, boundary: Boundary) -> Boundary:
    added = insert(progress).values(pipeline=pipeline, worker=worker, boundary=boundary)
    the_larger = func.greatest(progress.c.boundary, added.excluded.boundary)
    stored = added.on_conflict_do_update(index_elements=["pipeline", "worker"], set_={"boundary": the_larger})
    furthest: Boundary = connection.execute(stored.returning(progress.c.boundary)).scalar_one()
    return furthest


def forget(connection: Connection, pipeline: int, worker: str) -> None:
    connection.execute(delete(progress).where(progress.c.pipeline == pipeline, progress.c.worker == worker))
