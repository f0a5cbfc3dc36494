"""What `ChangesTrigger` does: one event for all that has changed since the last.

That something may have changed shows in how far the stream is durable, of which everybody who waits for the pipeline
hears over one connection; only then, and every few minutes, the table itself is looked at, by the connection as Airflow
has it then: passwords are rotated. What is announced is noted in the store once the
event is out: a triggerer that dies in between announces it once more, and none is lost.

It does not end by a server's absence, nor by a connection that is not there yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import psycopg
from airflow.triggers.base import TriggerEvent

from airflow_provider_pgetl.connections import STATE, avalue
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.phases import Ready
from airflow_provider_pgetl.engine.positions import START, Boundary
from airflow_provider_pgetl.engine.state.connecting import Place
from airflow_provider_pgetl.engine.state.unannounced import Change, change_of, record_announced
from airflow_provider_pgetl.engine.state.watching import Picture
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.triggers.watchers import watcher

if TYPE_CHECKING:
    from airflow_provider_pgetl.triggers.changes import ChangesTrigger

_BY = "asset watcher"
_PAUSE_SECONDS = 10.0
_LOOK_SECONDS = 300.0


async def announce_changes(trigger: ChangesTrigger) -> AsyncIterator[TriggerEvent]:
    table = TableName(*trigger.table)
    durable: tuple[int, Boundary] = 0, START
    while True:
        try:
            durable = await _advanced(trigger, table, durable)
            place = Place.parse(await avalue(STATE, trigger.state_conn_id))
            change = await change_of(place, trigger.pipeline, table)
            if change is not None:
                yield TriggerEvent(_said(trigger.pipeline, table, change))
                await record_announced(place, trigger.pipeline, table, change, _BY)
                await asyncio.sleep(trigger.at_most_every)
        except (psycopg.Error, PgetlError) as error:
            trigger.log.warning("Changes of %s cannot be seen: %s", table, _words(error))
            durable = 0, START
            await asyncio.sleep(_PAUSE_SECONDS)


async def _advanced(trigger: ChangesTrigger, table: TableName, since: tuple[int, Boundary]) -> tuple[int, Boundary]:
    """The table's generation, and how far the stream is durable, once one of them is another, and the table Ready;
    as they were, if that takes long."""

    def stands(picture: Picture) -> tuple[int, Boundary] | None:
        state = picture.states.get(table)
        return (state.generation, picture.durable) if state is not None and isinstance(state.phase, Ready) else None

    waiting = await watcher(trigger.state_conn_id, trigger.pipeline)
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            picture = await waiting.wait(lambda picture: stands(picture) not in (None, since))
    except TimeoutError:
        return since
    return stands(picture) or since


def _said(pipeline: str, table: TableName, change: Change) -> dict[str, object]:
    return {
        "pipeline": pipeline,
        "table": str(table),
        "position": change.position,
        "generation": change.generation,
        "schema_from": change.schema_from,
        "committed": None if change.committed is None else change.committed.isoformat(),
        "rows": None if change.rows is None else asdict(change.rows),
    }


def _words(error: Exception) -> str:
    """What a server says may quote what it was sent."""
    return error.message if isinstance(error, PgetlError) else type(error).__name__
