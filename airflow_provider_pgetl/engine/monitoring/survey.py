"""A survey of a pipeline's state for display: one connection, four reads, no changes.

Beside what `watching.look` returns, it contains the age of each table's phase, the table's place in the destination,
and how many rows its last copy had. `describe` returns what can be published of single tables: their columns, and the
position of their data. A server that does not answer is given up soon, because a page or a task waits for the result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from airflow_provider_pgetl.engine.model.phases import Ready, TableState, phase_from_json
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.monitoring.watching import SaidLag
from airflow_provider_pgetl.engine.state.state_database import StateDatabase, translated

_CONNECT_SECONDS = 5
_PATIENCE = "select set_config('statement_timeout', '5s', false)"

_KNOWN = "select to_regclass('pgetl.pipelines') is not null"
_PIPELINE = """
select p.key, coalesce(p.expires > clock_timestamp(), false), l.bytes, l.seconds,
       extract(epoch from clock_timestamp() - l.at)::float8, to_jsonb(p) ->> 'paused' is not null
from pgetl.pipelines p left join pgetl.lags l on l.pipeline = p.key
where p.id = %s
"""  # the state may be of a version without the column `paused`
_INSTANCES = "select id, instance from pgetl.pipelines"
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
_DESCRIBED = """
select t.table_schema, t.table_name, h.phase, h.generation, h.attempt, h.copied::text,
       greatest(case when t.marked_attempt = h.attempt then t.high_water end, g.boundary)::text,
       d.details, s.definition
from pgetl.pipelines p
join pgetl.tables t on t.pipeline = p.key
join pgetl.history h on (h.pipeline, h.table_schema, h.table_name, h.entry)
                      = (t.pipeline, t.table_schema, t.table_name, t.current)
left join pgetl.destination_tables d on (d.pipeline, d.table_schema, d.table_name)
                                      = (t.pipeline, t.table_schema, t.table_name)
left join pgetl.progress g on (g.pipeline, g.worker) = (p.key, 'ceiling')
left join lateral (
    select definition from pgetl.table_schemas v
    where (v.pipeline, v.table_schema, v.table_name) = (t.pipeline, t.table_schema, t.table_name)
    order by v.valid_from desc limit 1
) s on true
where p.id = %s and (t.table_schema, t.table_name) in (select * from unnest(%s::text[], %s::text[]))
"""


@dataclass(frozen=True, slots=True)
class SurveyedTable:
    """`age`: for how many seconds it has been in its phase. `rows`: those of its last finished copy."""

    table: TableName
    state: TableState
    age: float
    destination: TableName | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class PipelineSurvey:
    """`streamed`: whether a worker holds the lease. `lag` is that of the stream, and so of every table that is Ready.
    `instances`: those of all pipelines in this state database, by their ids."""

    streamed: bool
    lag: SaidLag | None
    tables: tuple[SurveyedTable, ...]
    paused: bool = False
    instances: Mapping[str, str] = field(default_factory=dict)


def survey(uri: str, pipeline: str) -> PipelineSurvey | None:
    """Returns None if the database has no such pipeline."""
    with _asking(uri, pipeline, "survey", _CONNECT_SECONDS) as connection:
        found = None if connection is None else connection.execute(_PIPELINE, [pipeline]).fetchone()
        if connection is None or found is None:
            return None
        key, streamed, size, seconds, age, paused = found
        tables = connection.execute(_TABLES, [key]).fetchall()
        lag = None if age is None else SaidLag(size, seconds, age)
        instances = dict(connection.execute(_INSTANCES).fetchall())
        return PipelineSurvey(streamed, lag, tuple(map(_table, tables)), paused, instances)


@dataclass(frozen=True, slots=True)
class TableDescription:
    """Describes one table. `schema`: its newest version, if a copy of the table has begun. `position`: its changes up
    to there are in the destination. `rows` and `bytes` are those of its last finished copy, `bytes` being the size of
    its heap."""

    state: TableState
    schema: TableSchema | None = None
    position: Boundary | None = None
    rows: int | None = None
    bytes: int | None = None


def describe(
    uri: str, pipeline: str, tables: Collection[TableName], patience: int
) -> Mapping[TableName, TableDescription]:
    """Returns those of the tables that the pipeline has. A server that cannot be reached is given up after `patience`
    seconds."""
    with _asking(uri, pipeline, "description", patience) as connection:
        if connection is None:
            return {}
        names = [[table.schema for table in tables], [table.name for table in tables]]
        found = connection.execute(_DESCRIBED, [pipeline, *names]).fetchall()
        return {TableName(*row[:2]): _description(*row[2:]) for row in found}


@contextmanager
def _asking(uri: str, pipeline: str, what: str, patience: int) -> Iterator[psycopg.Connection[Any] | None]:
    """Yields a session; None where the database holds no state at all."""
    place = StateDatabase.parse(uri)
    name = f"pgetl {pipeline} {what}"
    with translated(place, pipeline), place.connect(name, connect_timeout=patience) as connection:
        connection.execute(_PATIENCE)
        known = connection.execute(_KNOWN).fetchone()
        yield connection if known and known[0] else None


def _description(
    phase: Any, generation: int, attempt: int | None, copied: str | None, seen: str | None, details: Any, schema: Any
) -> TableDescription:
    at = None if copied is None else Boundary.parse(copied)
    state = TableState(phase_from_json(phase), generation, attempt, at)
    followed = isinstance(state.phase, Ready) and seen is not None
    position = max(at or START, Boundary.parse(str(seen))) if followed else at
    copy = details or {}
    described = None if schema is None else TableSchema.from_json(schema)
    return TableDescription(state, described, position, copy.get("rows"), copy.get("bytes"))


def _table(row: tuple[Any, ...]) -> SurveyedTable:
    schema, name, phase, generation, attempt, age, *there, details = row
    state = TableState(phase_from_json(phase), generation, attempt)
    destination = None if there[0] is None else TableName(*there)
    return SurveyedTable(TableName(schema, name), state, age, destination, (details or {}).get("rows"))
