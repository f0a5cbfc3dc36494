"""Waiting, in an event loop, for what other processes write into a state database in Postgres: many waits over one
connection.

A `StateWatcher` belongs to one pipeline of one database and one event loop. While there are waits it holds one
connection, which LISTENs. At each notification, and every few seconds in any case, it reads the tables that have
changed, and each wait checks its condition on the whole state. When there are no more waits the connection is closed. A
connection that breaks is made again for as long as there are waits: a wait ends by its condition or by being cancelled,
never by an error that passes. An unexpected error ends every wait, and is raised by each.

Reading changes nothing, not even in a database without the pipeline.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_pgetl.engine.model.errors import Backoff, PgetlError
from airflow_provider_pgetl.engine.model.phases import TableState
from airflow_provider_pgetl.engine.model.positions import RowCounts
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.monitoring.snapshots import (
    ATTEMPTS,
    KNOWN,
    PIPELINE,
    TABLES,
    PipelineSnapshot,
    since_in,
    snapshot_of,
    states_in,
)
from airflow_provider_pgetl.engine.postgres.sessions import connection_failure
from airflow_provider_pgetl.engine.state.state_database import StateDatabase

log = logging.getLogger(__name__)

_POLL_SECONDS = 5.0
_GATHER_SECONDS = 0.1
_BACKOFF = Backoff(0.5, 15.0)
_TELL_SECONDS = 60.0

_COMPLETIONS = """
select c.task, extract(epoch from c.at)::float8
from pgetl.completions c join pgetl.pipelines p on p.key = c.pipeline
where p.id = %s and c.run = %s
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
        return await self._place.connect_async(f"pgetl {self._pipeline} watcher")

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> int:
        """Waits until the pipeline exists, and listens; returns the key of its row."""
        while True:
            known = await (await connection.execute(KNOWN)).fetchone()
            if known and known[0]:
                row = await (await connection.execute(PIPELINE, [self._pipeline])).fetchone()
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
        row = await (await connection.execute(PIPELINE, [self._pipeline])).fetchone()
        attempts = await (await connection.execute(ATTEMPTS, [key])).fetchall()
        await self._look_at_tables(connection, key, seen)
        return snapshot_of(row, attempts, seen.states, seen.since)

    async def _look_at_tables(self, connection: psycopg.AsyncConnection[Any], key: int, seen: _Seen) -> None:
        """Reads the number of the last change before the tables: a change in between is read a second time."""
        row = await (await connection.execute(_LAST_CHANGE, [key])).fetchone()
        last, file = row or (-1, None)
        if seen.file != file or last < seen.change or row is None:
            rows = await (await connection.execute(TABLES, [key])).fetchall()
            seen.states, seen.since = states_in(rows), since_in(rows)
        elif last > seen.change:
            found = await (await connection.execute(_CHANGED, [key, seen.change])).fetchall()
            gone = {TableName(*one[:2]) for one in found if one[2] is None}
            kept = {table: state for table, state in seen.states.items() if table not in gone}
            there = [one for one in found if one[2] is not None]
            seen.states, seen.since = kept | states_in(there), seen.since | since_in(there)
        seen.change, seen.file = last, file

    def _settle(self, picture: PipelineSnapshot) -> None:
        for waiting, condition in list(self._waits.items()):
            if not waiting.done() and condition(picture):
                waiting.set_result(picture)


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
    -- The last one that the destination has; a later one is only known of so far. The first is that of the copy.
    order by s.valid_from < t.high_water desc,
             case when s.valid_from < t.high_water then s.valid_from end desc, s.valid_from
    limit 1
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


async def change_of(uri: str, pipeline: str, table: TableName) -> ReplicaChange | None:
    """Returns None if nothing has changed, or the table is not Ready."""
    async with await StateDatabase.parse(uri).connect_async(f"pgetl {pipeline} changes") as connection:
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


async def record_announced(uri: str, pipeline: str, table: TableName, change: ReplicaChange, by: str) -> None:
    position = f"{change.generation}/{change.position}"
    async with await StateDatabase.parse(uri).connect_async(f"pgetl {pipeline} changes") as connection:
        counts = [change.counted_from, *astuple(change.counted or RowCounts())]
        await connection.execute(_ANNOUNCED, [table.schema, table.name, position, by, *counts, pipeline])


# -- Whether a server accepts connections again. -----------------------------------------------------------------------


async def outage(uri: str, application_name: str) -> str:
    """Returns the message about a server that accepts no connection for the time being; empty if it accepts one, and
    for errors that only a person can settle."""
    try:
        place = StateDatabase.parse(uri, "the database")
        await (await place.connect_async(application_name)).close()
    except psycopg.Error as error:
        failure = connection_failure(str(place), error)
        return failure.message if failure.transient else ""
    except PgetlError as error:
        return error.message if error.transient else ""
    return ""
