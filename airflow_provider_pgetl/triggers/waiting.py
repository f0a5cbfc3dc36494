"""What the triggers that wait do: each judges the pictures of its pipeline until one is as it should be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_pgetl.book import ApplyTask
from airflow_provider_pgetl.engine.phases import DataSync, Init, Ready, phase_name
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state.watching import Picture
from airflow_provider_pgetl.engine.sync import upkeep
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.lag_limit import LagLimit
from airflow_provider_pgetl.task_states import ended_tasks
from airflow_provider_pgetl.triggers.streamed import NobodyStreams, wait_while_streamed
from airflow_provider_pgetl.triggers.watchers import watcher

if TYPE_CHECKING:
    from airflow_provider_pgetl.triggers.caught_up import CaughtUpTrigger
    from airflow_provider_pgetl.triggers.lag import LagTrigger
    from airflow_provider_pgetl.triggers.phase import PhaseTrigger
    from airflow_provider_pgetl.triggers.turn import TurnTrigger

_PLACE_SECONDS = 3.0
_LOOK_SECONDS = 10.0


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
            picture = await _wait(trigger, has_come)
    except TimeoutError:
        yield TriggerEvent({"phase": None, "due": True})
        return
    except NobodyStreams as silence:
        yield TriggerEvent({"phase": None, **_told(silence)})
        return
    state = picture.states.get(table)
    yield TriggerEvent({"phase": None if state is None else phase_name(state.phase)})


async def caught_up(trigger: CaughtUpTrigger) -> AsyncIterator[TriggerEvent]:
    """Airflow is asked now and then whether the task that brings it has ended, as then it may never come."""
    table = TableName(*trigger.table)
    position = None if trigger.position is None else Boundary.parse(trigger.position)

    def has_caught_up(picture: Picture) -> bool:
        state = picture.states.get(table)
        if state is None or not isinstance(state.phase, Ready):
            return True
        return position is not None and picture.durable >= position

    waiting = await watcher(trigger.state_conn_id, trigger.pipeline)
    arrival = asyncio.create_task(waiting.wait(has_caught_up))
    ended: frozenset[str] = frozenset()
    try:
        while not arrival.done() and not ended:
            await asyncio.wait({arrival}, timeout=_LOOK_SECONDS)
            if not arrival.done():
                ended = await ended_tasks(trigger.run_name, [trigger.follows])
        if arrival.done():
            arrival.result()
    finally:
        arrival.cancel()
    yield TriggerEvent({"position": trigger.position, "ended": bool(ended)})


async def turn(trigger: TurnTrigger) -> AsyncIterator[TriggerEvent]:
    """When room comes, everybody who waits for it hears of it at once. They do not all come back: those whose tables
    come first in the alphabet do, and each of the others only if the room is still there some seconds later.
    """
    if trigger.not_before is not None:
        await asyncio.sleep(max(0.0, trigger.not_before - time.time()))
        yield TriggerEvent({"due": True})
        return
    queue = _Queue(TableName(*trigger.table), trigger.room)
    try:
        picture = await _wait(trigger, queue.is_open)
        while place := queue.place(picture):
            await asyncio.sleep(place * _PLACE_SECONDS)
            again = await _wait(trigger, queue.is_open)
            if queue.place(again) >= place:
                break
            picture = again
    except NobodyStreams as silence:
        yield TriggerEvent({"due": False, **_told(silence)})
        return
    yield TriggerEvent({"due": False})


async def _wait(trigger: PhaseTrigger | TurnTrigger, condition: Callable[[Picture], bool]) -> Picture:
    waiting = await watcher(trigger.state_conn_id, trigger.pipeline)
    apply = ApplyTask(trigger.run_name, trigger.apply) if trigger.apply else None
    return await wait_while_streamed(waiting, condition, apply, trigger.grace, trigger.log)


def _told(silence: NobodyStreams) -> dict[str, Any]:
    return {"unstreamed": silence.ended, "seconds": silence.seconds}


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
            return not picture.paused and upkeep.groups_under_way(picture.states, picture.live) < self._room
        return True

    def place(self, picture: Picture) -> int:
        """How many times room must have been left unused before it is this table's turn."""
        waiting = upkeep.tables_to_copy(picture.states)
        return waiting.index(self._table) // self._room if self._table in waiting else 0
