"""The work of the triggers that wait: each checks snapshots of its pipeline until one satisfies its condition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_pgetl.completion_records import ApplyTask, ahow_apply_ended, ended_tasks
from airflow_provider_pgetl.engine.model.phases import DataSync, Init, Ready, phase_name
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.quantities import format_duration
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.monitoring.snapshots import LagLimit, PipelineSnapshot
from airflow_provider_pgetl.engine.monitoring.watching import StateWatcher
from airflow_provider_pgetl.reporting import Log
from airflow_provider_pgetl.triggers.watchers import watcher

if TYPE_CHECKING:
    from airflow_provider_pgetl.triggers.admission import AdmissionTrigger
    from airflow_provider_pgetl.triggers.caught_up import CaughtUpTrigger
    from airflow_provider_pgetl.triggers.lag import LagTrigger
    from airflow_provider_pgetl.triggers.phase import PhaseTrigger
    from airflow_provider_pgetl.triggers.stream import StreamTrigger


# -- Waiting for a table that only a stream brings further: while a worker streams, or is going to. --------------------
#
# A wait reads the pipeline's lease. When no worker has held it for a while (`grace`), or the state could not be read
# for so long, Airflow is asked for the state of the run's `apply`. One that is under way, waits for a retry or has not
# begun will stream, so the wait goes on, and logs that once a minute. If it has ended, and no other run of the DAG has
# one, no stream will bring the table further in this run: `NobodyStreams`. While the pipeline is paused its worker
# holds the lease, so the wait goes on, and logs the reason once.
#
# Triggers that an earlier version has stored have no `apply`; they wait without a bound, as they did.

_ROUND_SECONDS = 2.0
_TELL_SECONDS = 60.0


class NobodyStreams(Exception):
    """No worker streams, and none will in this run. `ended`: the state in which the run's `apply` has ended. `seconds`:
    for how long no worker has streamed."""

    def __init__(self, ended: str, seconds: float) -> None:
        super().__init__(ended)
        self.ended = ended
        self.seconds = seconds


@dataclass
class Silence:
    """For how long no worker has been seen to stream. Pure; `now` in seconds by any clock."""

    grace: float
    since: float
    _asked: float = 0.0
    _told: float = 0.0

    def __post_init__(self) -> None:
        self._asked = self._told = self.since

    def end(self, now: float) -> None:
        """Notes that a worker streams."""
        self.since = self._asked = self._told = now

    def is_to_be_asked(self, now: float) -> bool:
        """Returns whether Airflow must be asked: True once for each `grace` that passes."""
        if now - self._asked < self.grace:
            return False
        self._asked = now
        return True

    def is_to_be_told(self, now: float) -> bool:
        if now - self._told < _TELL_SECONDS:
            return False
        self._told = now
        return True


async def await_apply(trigger: StreamTrigger) -> AsyncIterator[TriggerEvent]:
    """The work of `StreamTrigger`."""
    apply = ApplyTask(trigger.run_name, trigger.apply)
    while time.time() < trigger.until:
        if await ahow_apply_ended(apply) is None:
            yield TriggerEvent({"streamed": True})
            return
        await asyncio.sleep(_ROUND_SECONDS)
    yield TriggerEvent({"streamed": False})


async def wait_while_streamed(
    watcher: StateWatcher,
    condition: Callable[[PipelineSnapshot], bool],
    apply: ApplyTask | None,
    grace: float,
    log: Log,
) -> PipelineSnapshot:
    """Returns the first snapshot that satisfies `condition`. Raises `NobodyStreams` if none can any more in this
    run."""
    silence = Silence(grace, time.monotonic())
    paused = False

    def judge(picture: PipelineSnapshot) -> bool:
        nonlocal paused
        if picture.streamed:
            silence.end(time.monotonic())
        if picture.paused and not paused:
            log.warning("The pipeline is paused; this task waits until it is resumed.")
        paused = picture.paused
        return condition(picture)

    coming = asyncio.ensure_future(watcher.wait(judge))
    try:
        while not (await asyncio.wait([coming], timeout=_ROUND_SECONDS))[0]:
            if apply is not None:
                await _expect_stream(silence, apply, log)
        return coming.result()
    finally:
        coming.cancel()


async def _expect_stream(silence: Silence, apply: ApplyTask, log: Log) -> None:
    now = time.monotonic()
    waited = now - silence.since
    if silence.is_to_be_asked(now):
        ended = await ahow_apply_ended(apply)
        if ended is not None:
            raise NobodyStreams(ended, waited)
    if silence.is_to_be_told(now):
        log.info("Nobody has streamed the pipeline for %s; this task waits for `apply`.", format_duration(waited))


# -- Waiting. ----------------------------------------------------------------------------------------------------------

_PLACE_SECONDS = 3.0
_LOOK_SECONDS = 10.0


async def lag(trigger: LagTrigger) -> AsyncIterator[TriggerEvent]:
    waiting = await watcher(trigger.state_conn_id, trigger.pipeline)
    await waiting.wait(LagLimit(trigger.most_bytes, trigger.most_seconds).holds)
    yield TriggerEvent({"within": True})


async def phase(trigger: PhaseTrigger) -> AsyncIterator[TriggerEvent]:
    table = TableName(*trigger.table)

    def has_come(picture: PipelineSnapshot) -> bool:
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
    """The work of `CaughtUpTrigger`. It regularly asks Airflow whether the task that brings the table to the position
    has ended, because then the table may never reach it."""
    table = TableName(*trigger.table)
    position = None if trigger.position is None else Boundary.parse(trigger.position)

    def has_caught_up(picture: PipelineSnapshot) -> bool:
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


async def admission(trigger: AdmissionTrigger) -> AsyncIterator[TriggerEvent]:
    """The work of `AdmissionTrigger`. When a copy can be admitted, all triggers that wait for that learn it at once. To
    avoid that all of them fire, those whose tables come first in the alphabet do, and each of the others only if no
    copy has begun some seconds later."""
    if trigger.not_before is not None:
        await asyncio.sleep(max(0.0, trigger.not_before - time.time()))
        yield TriggerEvent({"due": True})
        return
    queue = _Queue(TableName(*trigger.table), trigger.capacity)
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


async def _wait(
    trigger: PhaseTrigger | AdmissionTrigger, condition: Callable[[PipelineSnapshot], bool]
) -> PipelineSnapshot:
    waiting = await watcher(trigger.state_conn_id, trigger.pipeline)
    apply = ApplyTask(trigger.run_name, trigger.apply) if trigger.apply else None
    return await wait_while_streamed(waiting, condition, apply, trigger.grace, trigger.log)


def _told(silence: NobodyStreams) -> dict[str, Any]:
    return {"unstreamed": silence.ended, "seconds": silence.seconds}


class _Queue:
    """The queue of the tables that are to be copied, for one of them."""

    def __init__(self, table: TableName, capacity: int) -> None:
        self._table = table
        self._capacity = capacity

    def is_open(self, picture: PipelineSnapshot) -> bool:
        """Returns whether the table could be copied now, or need not be any more."""
        state = picture.states.get(self._table)
        if state is not None and isinstance(state.phase, DataSync):
            return state.attempt not in picture.live
        if state is not None and isinstance(state.phase, Init):
            return not picture.paused and picture.groups_under_way < self._capacity
        return True

    def place(self, picture: PipelineSnapshot) -> int:
        """Returns how many times the capacity must have been left unused before it is this table's turn."""
        waiting = picture.tables_to_copy
        return waiting.index(self._table) // self._capacity if self._table in waiting else 0
