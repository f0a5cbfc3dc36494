"""The state watchers of a triggerer: one per state database and pipeline, shared by all triggers that wait.

Hundreds of tables may wait at once, so per triggerer process and pipeline there is one listening connection, and one
query reads all tables for all triggers that wait (`engine.monitoring.watching`). The module also contains the work of
`ChangesTrigger` and `OutageTrigger`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, WeakValueDictionary

import psycopg
from airflow.triggers.base import TriggerEvent

from airflow_provider_pgetl.connections import STATE, STORAGE, ConnectionIds, avalue
from airflow_provider_pgetl.engine.model.errors import Backoff, PgetlError
from airflow_provider_pgetl.engine.model.phases import Ready
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.monitoring.snapshots import PipelineSnapshot
from airflow_provider_pgetl.engine.monitoring.watching import (
    ReplicaChange,
    StateWatcher,
    change_of,
    outage,
    record_announced,
)

if TYPE_CHECKING:
    from airflow_provider_pgetl.triggers.changes import ChangesTrigger
    from airflow_provider_pgetl.triggers.outage import OutageTrigger


_Watchers = WeakValueDictionary[tuple[str, str], StateWatcher]
_WATCHERS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Watchers] = WeakKeyDictionary()


async def watcher(state_conn_id: str, pipeline: str) -> StateWatcher:
    """Returns the watcher of this event loop. A changed password makes a new one; the old one is deleted with its last
    wait, and its password with it."""
    uri = await avalue(STATE, state_conn_id)
    watchers = _WATCHERS.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return watchers.setdefault((uri, pipeline), StateWatcher(uri, pipeline))


# -- The work of `ChangesTrigger`: one event for all that has changed since the last. ----------------------------------
#
# The position up to which the stream is durable shows that something may have changed; one connection reports it to all
# triggers that wait for the pipeline. Only when it moves, and every few minutes, the table itself is read, by the
# connection as Airflow has it at that time, because passwords are rotated. What is announced is recorded in the store
# once the event is out: a triggerer that ends in between announces it once more, and none is lost.
#
# It does not end because a server is out of reach, nor because a connection does not exist yet.

_BY = "asset watcher"
_PAUSE_SECONDS = 10.0
_LOOK_SECONDS = 300.0


async def announce_changes(trigger: ChangesTrigger) -> AsyncIterator[TriggerEvent]:
    table = TableName(*trigger.table)
    durable: tuple[int, Boundary] = 0, START
    while True:
        try:
            durable = await _advanced(trigger, table, durable)
            uri = await avalue(STATE, trigger.state_conn_id)
            change = await change_of(uri, trigger.pipeline, table)
            if change is not None:
                yield TriggerEvent(_said(trigger.pipeline, table, change))
                await record_announced(uri, trigger.pipeline, table, change, _BY)
                await asyncio.sleep(trigger.at_most_every)
        except (psycopg.Error, PgetlError) as error:
            trigger.log.warning("Changes of %s cannot be seen: %s", table, _words(error))
            durable = 0, START
            await asyncio.sleep(_PAUSE_SECONDS)


async def _advanced(trigger: ChangesTrigger, table: TableName, since: tuple[int, Boundary]) -> tuple[int, Boundary]:
    """Returns the table's generation and the position up to which the stream is durable, once one of them differs from
    `since` and the table is Ready; returns `since` if that takes long."""

    def stands(picture: PipelineSnapshot) -> tuple[int, Boundary] | None:
        state = picture.states.get(table)
        return (state.generation, picture.durable) if state is not None and isinstance(state.phase, Ready) else None

    waiting = await watcher(trigger.state_conn_id, trigger.pipeline)
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            picture = await waiting.wait(lambda picture: stands(picture) not in (None, since))
    except TimeoutError:
        return since
    return stands(picture) or since


def _said(pipeline: str, table: TableName, change: ReplicaChange) -> dict[str, object]:
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
    """Returns what may be logged of an error: a server's message may quote what it was sent."""
    return error.message if isinstance(error, PgetlError) else type(error).__name__


# -- The work of `OutageTrigger`: try, with growing pauses, whether the servers of a pipeline accept connections. ------
#
# It finds out nothing more; the task checks whether it can go on, and waits again if it cannot.

_LONGEST_PAUSE_SECONDS = 30.0
_TELL_SECONDS = 60.0


async def reach(trigger: OutageTrigger) -> AsyncIterator[TriggerEvent]:
    backoff, failures, told = Backoff(trigger.pause, _LONGEST_PAUSE_SECONDS), 1, time.monotonic()
    await asyncio.sleep(trigger.pause)
    while trouble := await _trouble(trigger):
        if trigger.until is not None and time.time() >= trigger.until:
            break
        if time.monotonic() - told >= _TELL_SECONDS:
            told = time.monotonic()
            trigger.log.warning("%s It is tried again.", trouble)
        failures += 1
        await asyncio.sleep(backoff.after(failures))
    yield TriggerEvent({"reachable": not trouble})


async def _trouble(trigger: OutageTrigger) -> str:
    """Returns the message about the first server that accepts no connection; empty where all do. An error that only a
    person can settle is not temporary and counts as none: the task reports it."""
    for name, conn_id in ConnectionIds.from_json(trigger.connections).named.items():
        if name == STORAGE:
            continue
        try:
            uri = await avalue(name, conn_id)
        except PgetlError as error:
            if error.transient:
                return error.message
            continue
        if trouble := await outage(uri, f"pgetl {trigger.pipeline} outage"):
            return trouble
    return ""
