"""An example query on a replica, revenue by day, in SQL that Postgres and DuckDB share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

QUESTION = """select date_trunc('day', paid at time zone 'UTC')::date as day,
       count(distinct customer_id) as customers, count(*) as payments, sum(amount) as revenue
from orders join payments on payments.order_id = orders.id
group by day order by day desc limit 7"""


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


def ask_postgres(session: psycopg.Connection) -> ShownAnswer:
    cursor = session.execute(QUESTION.encode())
    return ShownAnswer([column.name for column in cursor.description or ()], cursor.fetchall())


def ask_lake(tables: Mapping[str, Path]) -> ShownAnswer:
    """Runs the query in DuckDB, on Delta tables that it reads through Arrow."""
    import duckdb
    from deltalake import DeltaTable

    with duckdb.connect() as connection:
        for name, place in tables.items():
            connection.register(name, DeltaTable(place).to_pyarrow_dataset())
        cursor = connection.execute(QUESTION)
        return ShownAnswer([column[0] for column in cursor.description], cursor.fetchall())
