"""What the triggers that wait do: each judges the pictures of its pipeline until one is as it should be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from airflow.triggers.base import TriggerEvent

from airflow_provider_pgetl.engine.phases import DataSync, Init, phase_name
from airflow_provider_pgetl.engine.state.watching import Picture
from airflow_provider_pgetl.engine.sync import upkeep
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.lag_limit import LagLimit
from airflow_provider_pgetl.triggers.watchers import watcher

if TYPE_CHECKING:
    from airflow_provider_pgetl.triggers.lag import LagTrigger
    from airflow_provider_pgetl.triggers.phase import PhaseTrigger
    from airflow_provider_pgetl.triggers.turn import TurnTrigger

_PLACE_SECONDS = 3.0


async def lag(trigger: LagTrigger) -> AsyncIterator[TriggerEvent]:
    waiting = await watcher(trigger.state_conn_id, trigger.pipeline)
    await waiting.wait(LagLimit(trigger.most_bytes, trigger.most_seconds).holds)
    yield TriggerEvent({"within": True})


async def phase(trigger: PhaseTrigger) -> AsyncIterator[TriggerEvent]:
    table = TableName(*trigger.table)

    def has_come(picture: Picture) -> bool:
        state = picture.states.get(table)
        return state is None or phase_name(state.phase) in trigger.phases

    left = None if trigger.until is None else max(0.0, trigger.until - time.time())
    try:
        async with asyncio.timeout(left):
            waiting = await watcher(trigger.state_conn_id, trigger.pipeline)
            picture = await waiting.wait(has_come)
    except TimeoutError:
        yield TriggerEvent({"phase": None, "due": True})
        return
    state = picture.states.get(table)
    yield TriggerEvent({"phase": None if state is None else phase_name(state.phase)})


async def turn(trigger: TurnTrigger) -> AsyncIterator[TriggerEvent]:
    """When room comes, everybody who waits for it hears of it at once. They do not all come back: those whose tables
    come first in the alphabet do, and each of the others only if the room is still there some seconds later.
    """
    if trigger.not_before is not None:
        await asyncio.sleep(max(0.0, trigger.not_before - time.time()))
        yield TriggerEvent({"due": True})
        return
    queue = _Queue(TableName(*trigger.table), trigger.room)
    waiting = await watcher(trigger.state_conn_id, trigger.pipeline)
    picture = await waiting.wait(queue.is_open)
    while place := queue.place(picture):
        await asyncio.sleep(place * _PLACE_SECONDS)
        again = await waiting.wait(queue.is_open)
        if queue.place(again) >= place:
            break
        picture = again
    yield TriggerEvent({"due": False})


class _Queue:
    """Of the tables that are to be copied, as one of them sees it."""

    def __init__(self, table: TableName, room: int) -> None:
        self._table = table
        self._room = room

    def is_open(self, picture: Picture) -> bool:
        """Whether the table could be copied now, or needs not be any more."""
        state = picture.states.get(self._table)
        if state is not None and isinstance(state.phase, DataSync):
            return state.attempt not in picture.live
        if state is not None and isinstance(state.phase, Init):
            return upkeep.groups_under_way(picture.states, picture.live) < self._room
        return True

    def place(self, picture: Picture) -> int:
        """How many times room must have been left unused before it is this table's turn."""
        waiting = upkeep.tables_to_copy(picture.states)
        return waiting.index(self._table) // self._room if self._table in waiting else 0
