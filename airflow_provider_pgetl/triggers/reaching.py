"""What `OutageTrigger` does: try, with growing pauses, whether the servers of a pipeline take connections.

That they do is all it finds out; whether the task can go on is the task's to see, which waits again if it cannot.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import psycopg
from airflow.triggers.base import TriggerEvent

from airflow_provider_pgetl.connections import STORAGE, ConnectionIds, avalue
from airflow_provider_pgetl.engine.connection_failures import connection_failure
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.state.connecting import Place

if TYPE_CHECKING:
    from airflow_provider_pgetl.triggers.outage import OutageTrigger

_LONGEST_PAUSE = 30.0
_TELL_SECONDS = 60.0


async def reach(trigger: OutageTrigger) -> AsyncIterator[TriggerEvent]:
    pause, told = trigger.pause, time.monotonic()
    await asyncio.sleep(pause)
    while trouble := await _trouble(trigger):
        if trigger.until is not None and time.time() >= trigger.until:
            break
        if time.monotonic() - told >= _TELL_SECONDS:
            told = time.monotonic()
            trigger.log.warning("%s It is tried again.", trouble)
        pause = min(2 * pause, _LONGEST_PAUSE)
        await asyncio.sleep(pause)
    yield TriggerEvent({"reachable": not trouble})


async def _trouble(trigger: OutageTrigger) -> str:
    """Of the first server that takes no connection; empty where all do. What only a person can settle is no trouble
    that passes: the task is to say it."""
    for name, conn_id in ConnectionIds.from_json(trigger.connections).named.items():
        if name == STORAGE:
            continue
        try:
            place = Place.parse(await avalue(name, conn_id), "the database")
            await (await place.connect_async(f"pgetl {trigger.pipeline} outage")).close()
        except psycopg.Error as error:
            failure = connection_failure(str(place), error)
            if failure.transient:
                return failure.message
        except PgetlError as error:
            if error.transient:
                return error.message
    return ""
