"""What there is of a pipeline, for people to look at: one connection, three reads, nothing changed.

Beside what `watching.look` answers it tells since when each table is where it is, where it lives in the destination,
and how many rows its last copy had. A server that does not answer is given up soon: somebody waits before a screen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider_pgetl.engine.phases import TableState, phase_from_json
from airflow_provider_pgetl.engine.state.connecting import Place
from airflow_provider_pgetl.engine.state.failures import translated
from airflow_provider_pgetl.engine.state.watching import SaidLag
from airflow_provider_pgetl.engine.tables import TableName

_CONNECT_SECONDS = 5
_PATIENCE = "select set_config('statement_timeout', '5s', false)"

_KNOWN = "select to_regclass('pgetl.pipelines') is not null"
_PIPELINE = """
select p.key, coalesce(p.expires > clock_timestamp(), false), l.bytes, l.seconds,
       extract(epoch from clock_timestamp() - l.at)::float8, to_jsonb(p) ->> 'paused' is not null
from pgetl.pipelines p left join pgetl.lags l on l.pipeline = p.key
where p.id = %s
"""  # the state may be of a version that knows no pause
_TABLES = """
select t.table_schema, t.table_name, h.phase, h.generation, h.attempt,
       extract(epoch from clock_timestamp() - h.at)::float8,
       d.destination_schema, d.destination_name, d.details
from pgetl.tables t
join pgetl.history h on (h.pipeline, h.table_schema, h.table_name, h.entry)
                      = (t.pipeline, t.table_schema, t.table_name, t.current)
left join pgetl.destination_tables d on (d.pipeline, d.table_schema, d.table_name)
                                      = (t.pipeline, t.table_schema, t.table_name)
where t.pipeline = %s
order by t.table_schema, t.table_name
"""


@dataclass(frozen=True, slots=True)
class SurveyedTable:
    """`age`: since when it is in its phase, in seconds. `rows`: of its last finished copy."""

    table: TableName
    state: TableState
    age: float
    destination: TableName | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """`streamed`: whether a worker holds the lease. `lag` is the stream's, and so that of every table that is Ready."""

    streamed: bool
    lag: SaidLag | None
    tables: tuple[SurveyedTable, ...]
    paused: bool = False


def survey(uri: str, pipeline: str) -> Survey | None:
    """None if the database knows of no such pipeline."""
    place = Place.parse(uri)
    name = f"pgetl {pipeline} survey"
    with translated(place, pipeline), place.connect(name, connect_timeout=_CONNECT_SECONDS) as connection:
        connection.execute(_PATIENCE)
        known = connection.execute(_KNOWN).fetchone()
        found = connection.execute(_PIPELINE, [pipeline]).fetchone() if known and known[0] else None
        if found is None:
            return None
        key, streamed, size, seconds, age, paused = found
        tables = connection.execute(_TABLES, [key]).fetchall()
        lag = None if age is None else SaidLag(size, seconds, age)
        return Survey(streamed, lag, tuple(map(_table, tables)), paused)


def _table(row: tuple[Any, ...]) -> SurveyedTable:
    schema, name, phase, generation, attempt, age, *there, details = row
    state = TableState(phase_from_json(phase), generation, attempt)
    destination = None if there[0] is None else TableName(*there)
    return SurveyedTable(TableName(schema, name), state, age, destination, (details or {}).get("rows"))
