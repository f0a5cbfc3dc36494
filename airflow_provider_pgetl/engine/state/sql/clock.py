"""The database's clock, the only one by which leases and attempts are judged.

`clock_timestamp()`, not `now()`: a statement that has waited for a lock must not judge by when it began.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Double, cast, func, select


def now() -> ColumnElement[datetime]:
    return func.clock_timestamp()


def read(connection: Connection) -> float:
    return connection.execute(select(seconds(now()))).scalar_one()


def in_seconds(ttl: float) -> ColumnElement[datetime]:
    return func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, cast(ttl, Double))


def seconds(moment: ColumnElement[datetime]) -> ColumnElement[float]:
    """A moment as seconds since the Unix epoch."""
    return cast(func.extract("epoch", moment), Double)
