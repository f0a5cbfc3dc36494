"""Copy attempts and their heartbeats. One that has expired is dead for good: others have acted on that."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import ColumnElement, Connection, and_, delete, insert, select, update

from airflow_provider_pgetl.engine.state.sql.clock import in_seconds, now
from airflow_provider_pgetl.engine.state.tables import attempts, pipelines


def start(connection: Connection, pipeline: int, ttl: float, holder: str) -> int:
    """The next number, never given before."""
    counted = update(pipelines).where(pipelines.c.key == pipeline)
    counted = counted.values(last_attempt=pipelines.c.last_attempt + 1).returning(pipelines.c.last_attempt)
    attempt: int = connection.execute(counted).scalar_one()
    connection.execute(delete(attempts).where(attempts.c.pipeline == pipeline, attempts.c.expires <= now()))
    begun = insert(attempts).values(pipeline=pipeline, attempt=attempt, holder=holder, expires=in_seconds(ttl))
    connection.execute(begun)
    return attempt


def last(connection: Connection, pipeline: int) -> int:
    return connection.execute(select(pipelines.c.last_attempt).where(pipelines.c.key == pipeline)).scalar() or 0


def beat(connection: Connection, pipeline: int, attempt: int, ttl: float) -> bool:
    beaten = update(attempts).where(_of(pipeline, attempt), attempts.c.expires > now())
    return connection.execute(beaten.values(expires=in_seconds(ttl))).rowcount > 0


def end(connection: Connection, pipeline: int, attempt: int) -> bool:
    """Whether there was anything to end."""
    return connection.execute(delete(attempts).where(_of(pipeline, attempt))).rowcount > 0


def living(connection: Connection, pipeline: int) -> Mapping[int, str]:
    """The attempts alive, with their holders."""
    columns = select(attempts.c.attempt, attempts.c.holder)
    query = columns.where(attempts.c.pipeline == pipeline, attempts.c.expires > now())
    return {row.attempt: row.holder for row in connection.execute(query)}


def _of(pipeline: int, attempt: int) -> ColumnElement[bool]:
    return and_(attempts.c.pipeline == pipeline, attempts.c.attempt == attempt)
