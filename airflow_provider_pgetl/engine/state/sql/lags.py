"""How far the stream was behind its source when it last said so."""

from __future__ import annotations

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert

from airflow_provider_pgetl.engine.state.protocol import Lag
from airflow_provider_pgetl.engine.state.sql.clock import seconds as seconds_of
from airflow_provider_pgetl.engine.state.tables import lags


def record(connection: Connection, pipeline: int, lag_bytes: int, seconds: float) -> None:
    values = {"bytes": lag_bytes, "seconds": seconds, "at": func.clock_timestamp()}
    added = insert(lags).values(pipeline=pipeline, **values)
    connection.execute(added.on_conflict_do_update(index_elements=["pipeline"], set_=values))


def read(connection: Connection, pipeline: int) -> Lag | None:
    query = select(lags.c.bytes, lags.c.seconds, seconds_of(lags.c.at)).where(lags.c.pipeline == pipeline)
    row = connection.execute(query).first()
    return None if row is None else Lag(*row)
