"""The right to stream. Each act is one statement on the pipeline's row: whoever is second finds it changed."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, Update, and_, or_, select, update

from airflow_provider_pgetl.engine.state.protocol import Lease
from airflow_provider_pgetl.engine.state.sql.clock import in_seconds, now, seconds
from airflow_provider_pgetl.engine.state.tables import pipelines

_EXPIRES = seconds(pipelines.c.expires).label("expires")


def acquire(connection: Connection, pipeline: int, holder: str, ttl: float, over: int | None = None) -> Lease | None:
    row_of = pipelines.c
    free = or_(row_of.holder.is_(None), row_of.holder == holder, row_of.expires <= now(), row_of.epoch == over)
    taken = _of(pipeline).where(free)
    taken = taken.values(epoch=row_of.epoch + 1, holder=holder, expires=in_seconds(ttl))
    row = connection.execute(taken.returning(row_of.holder, row_of.epoch, _EXPIRES)).first()
    return None if row is None else Lease(row.holder, row.epoch, row.expires)


def renew(connection: Connection, pipeline: int, epoch: int, ttl: float) -> bool:
    """Also a lease that has expired, as long as nobody has taken it."""
    renewed = _of(pipeline).where(_held_under(epoch)).values(expires=in_seconds(ttl))
    return connection.execute(renewed).rowcount > 0


def release(connection: Connection, pipeline: int, epoch: int) -> bool:
    """Whether there was anything to release."""
    released = _of(pipeline).where(_held_under(epoch)).values(holder=None, expires=None)
    return connection.execute(released).rowcount > 0


def read(connection: Connection, pipeline: int) -> Lease | None:
    query = select(pipelines.c.holder, pipelines.c.epoch, _EXPIRES)
    query = query.where(pipelines.c.key == pipeline, pipelines.c.holder.is_not(None), pipelines.c.expires > now())
    row = connection.execute(query).first()
    return None if row is None else Lease(row.holder, row.epoch, row.expires)


def raise_epoch(connection: Connection, pipeline: int) -> int:
    raised = _of(pipeline).values(epoch=pipelines.c.epoch + 1, holder=None, expires=None)
    epoch: int = connection.execute(raised.returning(pipelines.c.epoch)).scalar_one()
    return epoch


def _of(pipeline: int) -> Update:
    return update(pipelines).where(pipelines.c.key == pipeline)


def _held_under(epoch: int) -> ColumnElement[bool]:
    return and_(pipelines.c.epoch == epoch, pipelines.c.holder.is_not(None))
