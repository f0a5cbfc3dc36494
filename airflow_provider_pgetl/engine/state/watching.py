"""Waiting, in an event loop, for what others write into a state database in Postgres: many waits over one connection.

A `Watcher` belongs to one pipeline of one database and one event loop. While anybody waits it holds one connection,
which LISTENs; at each notification, and every few seconds in any case, one query reads all tables and every wait looks
at the answer. When nobody waits any more the connection is closed. A connection that breaks is made again for as long
as there are waits: a wait ends by its condition or by being cancelled, never by an error that passes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import sql

from airflow_provider_pgetl.engine.phases import Phase, phase_from_json
from airflow_provider_pgetl.engine.state.connecting import Place
from airflow_provider_pgetl.engine.tables import TableName

log = logging.getLogger(__name__)

Phases = Mapping[TableName, Phase]
_POLL_SECONDS = 5.0
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 15.0

_KEY = "select key from pgetl.pipelines where id = %s"
_PHASES = """
select t.table_schema, t.table_name, h.phase
from pgetl.tables t
join pgetl.history h on (h.pipeline, h.table_schema, h.table_name, h.entry)
                      = (t.pipeline, t.table_schema, t.table_name, t.current)
where t.pipeline = %s
"""


class Watcher:
    """Made on first use, by `wait`."""

    def __init__(self, uri: str, pipeline: str) -> None:
        self._place = Place.parse(uri)
        self._pipeline = pipeline
        self._waits: dict[asyncio.Future[Phases], Callable[[Phases], bool]] = {}
        self._task: asyncio.Task[None] | None = None

    async def wait(self, condition: Callable[[Phases], bool]) -> Phases:
        """Until the tables are such that `condition` holds; what they were then."""
        waiting: asyncio.Future[Phases] = asyncio.get_running_loop().create_future()
        self._waits[waiting] = condition
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())
        try:
            return await waiting
        finally:
            self._waits.pop(waiting, None)
            await self._rest()

    async def _rest(self) -> None:
        """With the last wait gone the connection goes."""
        if not self._waits and self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _watch(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                async with await self._connect() as connection:
                    key = await self._listen(connection)
                    pause = _FIRST_PAUSE
                    await self._serve(connection, key)
            except psycopg.Error as error:
                log.warning("The state database %s could not be read: %s", self._place, type(error).__name__)
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        name = f"pgetl {self._pipeline} watcher"
        parameters = {"connect_timeout": 10, **self._place.parameters, "application_name": name}
        return await psycopg.AsyncConnection.connect(**parameters, autocommit=True, prepare_threshold=None)

    async def _listen(self, connection: psycopg.AsyncConnection[Any]) -> int:
        cursor = await connection.execute(_KEY, [self._pipeline])
        row = await cursor.fetchone()
        if row is None:
            raise psycopg.OperationalError(f"there is no pipeline {self._pipeline} yet")
        await connection.execute(sql.SQL("listen {}").format(sql.Identifier(f"pgetl_{row[0]}")))
        return int(row[0])

    async def _serve(self, connection: psycopg.AsyncConnection[Any], key: int) -> None:
        while True:
            self._settle(await _read(connection, key))
            async for _ in connection.notifies(timeout=_POLL_SECONDS, stop_after=1):
                pass

    def _settle(self, phases: Phases) -> None:
        for waiting, condition in list(self._waits.items()):
            if not waiting.done() and condition(phases):
                waiting.set_result(phases)


async def _read(connection: psycopg.AsyncConnection[Any], key: int) -> Phases:
    cursor = await connection.execute(_PHASES, [key])
    return {TableName(row[0], row[1]): phase_from_json(row[2]) for row in await cursor.fetchall()}
