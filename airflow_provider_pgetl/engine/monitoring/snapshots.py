"""The state of a pipeline as it is read from outside, without a store object: by sensors and triggers, for display, and
to describe tables.

A `PipelineSnapshot` is what is read at one time; `look` reads it once, `watching` whenever it changes, and `surveys`
with what a page displays. `describe` returns what can be published of single tables: their columns, and the position of
their data.

Reading changes nothing, not even in a database without the pipeline. A task waits for the result of `describe`, so it
soon gives up a server that does not answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psycopg

from airflow_provider_pgetl.engine.model.phases import Ready, TableState, phase_from_json
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.model.quantities import parse_duration, parse_size
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.state import decisions
from airflow_provider_pgetl.engine.state.state_database import StateDatabase, translated

KNOWN = "select to_regclass('pgetl.pipelines') is not null"
PIPELINE = """
select p.key, coalesce(p.expires > clock_timestamp(), false), l.bytes, l.seconds,
       extract(epoch from clock_timestamp() - l.at)::float8, extract(epoch from clock_timestamp())::float8,
       g.boundary::text, to_jsonb(p) ->> 'paused' is not null
from pgetl.pipelines p
left join pgetl.lags l on l.pipeline = p.key
left join pgetl.progress g on (g.pipeline, g.worker) = (p.key, 'ceiling')
where p.id = %s
"""  # the state may be of a version without the column `paused`
ATTEMPTS = "select attempt from pgetl.attempts where pipeline = %s and expires > clock_timestamp()"
TABLES = """
select t.table_schema, t.table_name, h.phase, h.generation, h.attempt, extract(epoch from h.at)::float8
from pgetl.tables t
join pgetl.history h on (h.pipeline, h.table_schema, h.table_name, h.entry)
                      = (t.pipeline, t.table_schema, t.table_name, t.current)
where t.pipeline = %s
"""


@dataclass(frozen=True, slots=True)
class SaidLag:
    """The stream's lag as it last reported it, `age` seconds ago."""

    bytes: int
    seconds: float
    age: float


@dataclass(frozen=True, slots=True)
class PipelineSnapshot:
    """The state of a pipeline as it was read at `now` of the store's clock. `live`: copy attempts that are alive;
    `streamed`: whether a worker holds the lease; `since`: when each table came to its state, by the store's clock;
    `durable`: all changes of Ready tables below it are in the destination; `paused`: nothing is streamed, and no copy
    begins."""

    states: Mapping[TableName, TableState] = field(default_factory=dict)
    live: frozenset[int] = frozenset()
    streamed: bool = False
    lag: SaidLag | None = None
    now: float = 0.0
    since: Mapping[TableName, float] = field(default_factory=dict)
    durable: Boundary = START
    paused: bool = False

    @property
    def tables_to_copy(self) -> list[TableName]:
        return decisions.tables_to_copy(self.states)

    @property
    def groups_under_way(self) -> int:
        return decisions.groups_under_way(self.states, self.live)

    @property
    def on_their_way(self) -> list[TableName]:
        return decisions.on_their_way(self.states, self.now)


def look(uri: str, pipeline: str) -> PipelineSnapshot | None:
    """Returns the present state of the pipeline; None if the database has no such pipeline."""
    with asking(uri, pipeline, "watcher") as connection:
        found = None if connection is None else read_snapshot(connection, pipeline)
        return None if found is None else found[1]


_PATIENCE = "select set_config('statement_timeout', '5s', false)"


@contextmanager
def asking(uri: str, pipeline: str, what: str, patience: int | None = None) -> Iterator[psycopg.Connection[Any] | None]:
    """Yields a session; None where the database holds no state at all. `patience`: the seconds after which a server
    that does not answer is given up."""
    place = StateDatabase.parse(uri)
    more = {} if patience is None else {"connect_timeout": patience}
    with translated(place, pipeline), place.connect(f"pgetl {pipeline} {what}", **more) as connection:
        if patience is not None:
            connection.execute(_PATIENCE)
        known = connection.execute(KNOWN).fetchone()
        yield connection if known and known[0] else None


def read_snapshot(connection: psycopg.Connection[Any], pipeline: str) -> tuple[int, PipelineSnapshot] | None:
    """Returns the key of the pipeline's row, and the snapshot."""
    row = connection.execute(PIPELINE, [pipeline]).fetchone()
    if row is None:
        return None
    attempts = connection.execute(ATTEMPTS, [row[0]]).fetchall()
    tables = connection.execute(TABLES, [row[0]]).fetchall()
    return row[0], snapshot_of(row, attempts, states_in(tables), since_in(tables))


def states_in(tables: list[tuple[Any, ...]]) -> dict[TableName, TableState]:
    return {
        TableName(schema, name): TableState(phase_from_json(phase), generation, attempt)
        for schema, name, phase, generation, attempt, _ in tables
    }


def since_in(tables: list[tuple[Any, ...]]) -> dict[TableName, float]:
    return {TableName(schema, name): at for schema, name, *_, at in tables}


def snapshot_of(
    pipeline: tuple[Any, ...] | None,
    attempts: list[tuple[Any, ...]],
    states: Mapping[TableName, TableState],
    since: Mapping[TableName, float],
) -> PipelineSnapshot:
    live = frozenset(row[0] for row in attempts)
    if pipeline is None:
        return PipelineSnapshot(states, live, since=since)
    _, streamed, lag_bytes, seconds, age, now, ceiling, paused = pipeline
    lag = None if age is None else SaidLag(lag_bytes, seconds, age)
    durable = START if ceiling is None else Boundary.parse(ceiling)
    return PipelineSnapshot(states, live, streamed, lag, now, since, durable, paused)


# -- Limits of the lag: whether a pipeline is not far behind. Pure. ----------------------------------------------------

# A lag that was reported longer ago is not used.
_STALE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class LagLimit:
    """At most that many bytes of WAL, or that many seconds."""

    bytes: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, limit: str | timedelta) -> LagLimit:
        """Reads a duration, as `timedelta` or like ``"10s"``, or a size like ``"16MiB"``."""
        if isinstance(limit, timedelta):
            return cls(seconds=limit.total_seconds())
        if limit.strip().upper().endswith("B"):
            return cls(bytes=parse_size(limit))
        return cls(seconds=parse_duration(limit))

    def holds(self, picture: PipelineSnapshot) -> bool:
        """Whether the pipeline is within the limit. A pipeline that is not streamed is not, however small its last lag
        was."""
        lag = picture.lag
        if lag is None or not picture.streamed or lag.age > _STALE_SECONDS:
            return False
        return (self.bytes is None or lag.bytes <= self.bytes) and (self.seconds is None or lag.seconds <= self.seconds)


# -- Descriptions of single tables, for others' catalogs. --------------------------------------------------------------

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
    with asking(uri, pipeline, "description", patience) as connection:
        if connection is None:
            return {}
        names = [[table.schema for table in tables], [table.name for table in tables]]
        found = connection.execute(_DESCRIBED, [pipeline, *names]).fetchall()
        return {TableName(*row[:2]): _description(*row[2:]) for row in found}


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
