"""Waiting, in an event loop, for what other processes write into a state database in Postgres: many waits over one
connection.

A `StateWatcher` belongs to one pipeline of one database and one event loop. While there are waits it holds one
connection, which LISTENs. At each notification, and every few seconds in any case, it reads the tables that have
changed, and each wait checks its condition on the whole state. When there are no more waits the connection is closed. A
connection that breaks is made again for as long as there are waits: a wait ends by its condition or by being cancelled,
never by an error that passes. An unexpected error ends every wait, and is raised by each.

Reading changes nothing, not even in a database without the pipeline. `look` reads the state once, without waiting.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_pgetl.engine.model.errors import Backoff
from airflow_provider_pgetl.engine.model.phases import TableState, phase_from_json
from airflow_provider_pgetl.engine.model.positions import START, Boundary, RowCounts
from airflow_provider_pgetl.engine.model.quantities import parse_duration, parse_size
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.state_database import StateDatabase, translated

log = logging.getLogger(__name__)

_POLL_SECONDS = 5.0
_GATHER_SECONDS = 0.1
_BACKOFF = Backoff(0.5, 15.0)
_TELL_SECONDS = 60.0

_KNOWN = "select to_regclass('pgetl.pipelines') is not null"
_PIPELINE = """
select p.key, coalesce(p.expires > clock_timestamp(), false), l.bytes, l.seconds,
       extract(epoch from clock_timestamp() - l.at)::float8, extract(epoch from clock_timestamp())::float8,
       g.boundary::text, to_jsonb(p) ->> 'paused' is not null
from pgetl.pipelines p
left join pgetl.lags l on l.pipeline = p.key
left join pgetl.progress g on (g.pipeline, g.worker) = (p.key, 'ceiling')
where p.id = %s
"""  # the state may be of a version without the column `paused`
_COMPLETIONS = """
select c.task, extract(epoch from c.at)::float8
from pgetl.completions c join pgetl.pipelines p on p.key = c.pipeline
where p.id = %s and c.run = %s
"""
_ATTEMPTS = "select attempt from pgetl.attempts where pipeline = %s and expires > clock_timestamp()"
_TABLES = """
select t.table_schema, t.table_name, h.phase, h.generation, h.attempt, extract(epoch from h.at)::float8
from pgetl.tables t
join pgetl.history h on (h.pipeline, h.table_schema, h.table_name, h.entry)
                      = (t.pipeline, t.table_schema, t.table_name, t.current)
where t.pipeline = %s
"""
_LAST_CHANGE = "select changes, pg_relation_filenode('pgetl.pipelines')::int8 from pgetl.pipelines where key = %s"
_CHANGED = """
select c.table_schema, c.table_name, h.phase, h.generation, h.attempt, extract(epoch from h.at)::float8
from pgetl.changes c
left join pgetl.tables t on (t.pipeline, t.table_schema, t.table_name) = (c.pipeline, c.table_schema, c.table_name)
left join pgetl.history h on (h.pipeline, h.table_schema, h.table_name, h.entry)
                           = (t.pipeline, t.table_schema, t.table_name, t.current)
where c.pipeline = %s and c.change > %s
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


@dataclass
class _Seen:
    """What one connection has read: all tables up to a change, and the number of the file that held the state."""

    change: int = -1
    file: int | None = None
    states: dict[TableName, TableState] = field(default_factory=dict)
    since: dict[TableName, float] = field(default_factory=dict)


class StateWatcher:
    """The waits for one pipeline. Their connection is opened by `wait` when it is first needed."""

    def __init__(self, uri: str, pipeline: str) -> None:
        self._place = StateDatabase.parse(uri)
        self._pipeline = pipeline
        self._waits: dict[asyncio.Future[PipelineSnapshot], Callable[[PipelineSnapshot], bool]] = {}
        self._task: asyncio.Task[None] | None = None
        self._told = float("-inf")

    async def wait(self, condition: Callable[[PipelineSnapshot], bool]) -> PipelineSnapshot:
        """Waits until `condition` holds for the pipeline; returns the snapshot for which it held."""
        waiting: asyncio.Future[PipelineSnapshot] = asyncio.get_running_loop().create_future()
        self._waits[waiting] = condition
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
            self._task.add_done_callback(self._tell)
        try:
            return await waiting
        finally:
            self._waits.pop(waiting, None)
            await self._rest()

    async def completions(self, run: str) -> Mapping[str, float] | None:
        """Returns when the tasks of an orchestrator's run last completed; None if that cannot be read now."""
        try:
            async with await self._connect() as connection:
                rows = await (await connection.execute(_COMPLETIONS, [self._pipeline, run])).fetchall()
                return dict(rows)
        except psycopg.Error as error:
            self._note(error)
            return None

    async def _rest(self) -> None:
        """Closes the connection if there are no more waits."""
        if not self._waits and self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            await asyncio.wait([task])

    def _tell(self, watch: asyncio.Task[None]) -> None:
        """Runs when the watching task has ended: because there are no more waits, or by an error, which is passed on to
        them."""
        error = None if watch.cancelled() else watch.exception()
        if error is None:
            return
        for waiting in self._waits:
            if not waiting.done():
                waiting.set_exception(error)

    async def _watch(self) -> None:
        failures = 0
        while True:
            try:
                async with await self._connect() as connection:
                    key = await self._listen(connection)
                    failures = 0
                    await self._serve(connection, key)
            except psycopg.Error as error:
                self._note(error)
            failures += 1
            await asyncio.sleep(_BACKOFF.after(failures) * random.uniform(0.5, 1.0))

    def _note(self, error: psycopg.Error) -> None:
        """Logs the error at most once a minute, however often the connection is tried."""
        now = time.monotonic()
        if now - self._told >= _TELL_SECONDS:
            self._told = now
            log.warning("The state in %s could not be read: %s", self._place, type(error).__name__)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        return await self._place.connect_async(_name(self._pipeline))

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> int:
        """Waits until the pipeline exists, and listens; returns the key of its row."""
        while True:
            known = await (await connection.execute(_KNOWN)).fetchone()
            if known and known[0]:
                row = await (await connection.execute(_PIPELINE, [self._pipeline])).fetchone()
                if row is not None:
                    await connection.execute(sql.SQL("listen {}").format(sql.Identifier(f"pgetl_{row[0]}")))
                    return int(row[0])
            await asyncio.sleep(_POLL_SECONDS)

    async def _serve(self, connection: psycopg.AsyncConnection[Any], key: int) -> None:
        seen = _Seen()
        while True:
            self._settle(await self._look(connection, key, seen))
            async for _ in connection.notifies(timeout=_POLL_SECONDS, stop_after=1):
                # Changes come in bursts; one read returns all of a burst.
                await asyncio.sleep(_GATHER_SECONDS)

    async def _look(self, connection: psycopg.AsyncConnection[Any], key: int, seen: _Seen) -> PipelineSnapshot:
        row = await (await connection.execute(_PIPELINE, [self._pipeline])).fetchone()
        attempts = await (await connection.execute(_ATTEMPTS, [key])).fetchall()
        await self._look_at_tables(connection, key, seen)
        return _picture(row, attempts, seen.states, seen.since)

    async def _look_at_tables(self, connection: psycopg.AsyncConnection[Any], key: int, seen: _Seen) -> None:
        """Reads the number of the last change before the tables: a change in between is read a second time."""
        row = await (await connection.execute(_LAST_CHANGE, [key])).fetchone()
        last, file = row or (-1, None)
        if seen.file != file or last < seen.change or row is None:
            rows = await (await connection.execute(_TABLES, [key])).fetchall()
            seen.states, seen.since = _states(rows), _since(rows)
        elif last > seen.change:
            found = await (await connection.execute(_CHANGED, [key, seen.change])).fetchall()
            gone = {TableName(*one[:2]) for one in found if one[2] is None}
            kept = {table: state for table, state in seen.states.items() if table not in gone}
            there = [one for one in found if one[2] is not None]
            seen.states, seen.since = kept | _states(there), seen.since | _since(there)
        seen.change, seen.file = last, file

    def _settle(self, picture: PipelineSnapshot) -> None:
        for waiting, condition in list(self._waits.items()):
            if not waiting.done() and condition(picture):
                waiting.set_result(picture)


def look(uri: str, pipeline: str) -> PipelineSnapshot | None:
    """Returns the present state of the pipeline; None if the database has no such pipeline."""
    place = StateDatabase.parse(uri)
    with translated(place, pipeline), place.connect(_name(pipeline)) as connection:
        known = connection.execute(_KNOWN).fetchone()
        row = connection.execute(_PIPELINE, [pipeline]).fetchone() if known and known[0] else None
        if row is None:
            return None
        attempts = connection.execute(_ATTEMPTS, [row[0]]).fetchall()
        tables = connection.execute(_TABLES, [row[0]]).fetchall()
        return _picture(row, attempts, _states(tables), _since(tables))


def _name(pipeline: str) -> str:
    return f"pgetl {pipeline} watcher"


def _states(tables: list[tuple[Any, ...]]) -> dict[TableName, TableState]:
    return {
        TableName(schema, name): TableState(phase_from_json(phase), generation, attempt)
        for schema, name, phase, generation, attempt, _ in tables
    }


def _since(tables: list[tuple[Any, ...]]) -> dict[TableName, float]:
    return {TableName(schema, name): at for schema, name, *_, at in tables}


def _picture(
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


# -- Changes of a replica since they were last announced; read in an event loop. ---------------------------------------
#
# The state is read, and no other server: how far the worker has recorded a Ready table to be in the destination, and
# the position that was announced last, by any run or watcher. Both are ``generation/position``, as in
# `Pipeline.changed_tables`, so that runs and watchers of one table do not announce the same changes twice.
#
# With the positions, counts of the changes up to them are stored. The changes since the last announcement are the
# difference, if both were counted from the same position on, of the same copy. Else their number is unknown: after a
# copy, after an announcement of a run, and where a worker has died before it had recorded what it had written.

_CHANGE = """
select h.generation, t.high_water::text, v.valid_from::text,
       timestamptz '2000-01-01 00:00+00' + t.commit_time * interval '1 microsecond',
       t.counted_from::text, t.inserts, t.updates, t.deletes, t.truncates,
       a.counted_from is not distinct from t.counted_from and a.position like h.generation || '/%%',
       a.inserts, a.updates, a.deletes, a.truncates
from pgetl.pipelines p
join pgetl.tables t on t.pipeline = p.key
join pgetl.history h on (h.pipeline, h.table_schema, h.table_name, h.entry)
                      = (t.pipeline, t.table_schema, t.table_name, t.current)
left join pgetl.announced a on (a.pipeline, a.table_schema, a.table_name)
                             = (t.pipeline, t.table_schema, t.table_name)
left join lateral (
    select s.valid_from from pgetl.table_schemas s
    where (s.pipeline, s.table_schema, s.table_name) = (t.pipeline, t.table_schema, t.table_name)
    order by s.valid_from desc limit 1
) v on true
where p.id = %s and (t.table_schema, t.table_name) = (%s, %s)
and h.phase ->> 'phase' = 'Ready' and h.attempt = t.marked_attempt
and a.position is distinct from h.generation || '/' || t.high_water::text
"""
_ANNOUNCED = """
insert into pgetl.announced (pipeline, table_schema, table_name, position, run,
                             counted_from, inserts, updates, deletes, truncates)
select p.key, %s, %s, %s, %s, %s, %s, %s, %s, %s from pgetl.pipelines p where p.id = %s
on conflict (pipeline, table_schema, table_name) do update set
    position = excluded.position, run = excluded.run, counted_from = excluded.counted_from,
    inserts = excluded.inserts, updates = excluded.updates, deletes = excluded.deletes, truncates = excluded.truncates
"""


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """`position`: the replica has the source's changes up to there; `schema_from`: since when it has its columns;
    `committed`: when the last transaction up to there was committed. `rows`: the changes since the last announcement,
    None if their number is unknown; `counted`: the changes since `counted_from`."""

    generation: int
    position: str
    schema_from: str | None
    committed: datetime | None = None
    rows: RowCounts | None = None
    counted_from: str | None = None
    counted: RowCounts | None = None


async def change_of(place: StateDatabase, pipeline: str, table: TableName) -> ReplicaChange | None:
    """Returns None if nothing has changed, or the table is not Ready."""
    async with await place.connect_async(f"pgetl {pipeline} changes") as connection:
        row = await (await connection.execute(_CHANGE, [pipeline, table.schema, table.name])).fetchone()
    return None if row is None else _change(*row)


def _change(
    generation: int,
    position: str,
    schema_from: str | None,
    committed: datetime | None,
    counted_from: str | None,
    *counts: Any,
) -> ReplicaChange:
    """`counts`: those up to now; whether those of the last announcement are comparable; those of the last
    announcement."""
    if counted_from is None:
        return ReplicaChange(generation, position, schema_from)
    now, is_comparable, before = RowCounts(*counts[:4]), counts[4], counts[5:]
    rows = now - RowCounts(*before) if is_comparable else None
    return ReplicaChange(generation, position, schema_from, committed, rows, counted_from, now)


async def record_announced(
    place: StateDatabase, pipeline: str, table: TableName, change: ReplicaChange, by: str
) -> None:
    position = f"{change.generation}/{change.position}"
    async with await place.connect_async(f"pgetl {pipeline} changes") as connection:
        counts = [change.counted_from, *astuple(change.counted or RowCounts())]
        await connection.execute(_ANNOUNCED, [table.schema, table.name, position, by, *counts, pipeline])


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
