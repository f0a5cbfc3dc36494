"""The work of the triggers that wait. Most of them check snapshots of their pipeline until one satisfies a
condition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import psycopg
from airflow.triggers.base import TriggerEvent

from airflow_provider_pgetl.completion_records import ApplyTask, ahow_apply_ended, ended_tasks
from airflow_provider_pgetl.connections import STATE, STORAGE, ConnectionIds, avalue
from airflow_provider_pgetl.engine.model.errors import Backoff, PgetlError
from airflow_provider_pgetl.engine.model.phases import DataSync, Init, Ready, phase_name
from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.model.quantities import format_duration
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.monitoring.snapshots import LagLimit, PipelineSnapshot
from airflow_provider_pgetl.engine.monitoring.watching import (
    ReplicaChange,
    StateWatcher,
    change_of,
    outage,
    record_announced,
)
from airflow_provider_pgetl.reporting import Log

if TYPE_CHECKING:
    from airflow_provider_pgetl.triggers.pgetl import (
        AdmissionTrigger,
        CaughtUpTrigger,
        ChangesTrigger,
        LagTrigger,
        OutageTrigger,
        PhaseTrigger,
        StreamTrigger,
    )


# -- The state watchers of a triggerer: one per state database and pipeline, shared by all triggers that wait. ---------
#
# Hundreds of tables may wait at once, so per triggerer process and pipeline there is one listening connection, and one
# query reads all tables for all triggers that wait (`engine.monitoring.watching`).

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
_QUIET_SECONDS = 300.0


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
        async with asyncio.timeout(_QUIET_SECONDS):
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


# -- Waiting for a table that only a stream brings further: while a worker streams, or is going to. --------------------
#
# A wait reads the pipeline's lease. When no worker has held it for a while (`grace`), or the state could not be read
# for so long, Airflow is asked for the state of the run's `apply`. One that is under way, waits for a retry or has not
# begun will stream, so the wait goes on, and logs that once a minute. If it has ended, and no other run of the DAG has
# one, no stream will bring the table further in this run: `NotStreamed`. While the pipeline is paused its worker
# holds the lease, so the wait goes on, and logs the reason once.
#
# Triggers that an earlier version has stored have no `apply`; they wait without a bound, as they did.

_ROUND_SECONDS = 2.0


class NotStreamed(Exception):
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
    """Returns the first snapshot that satisfies `condition`. Raises `NotStreamed` if none can any more in this
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
            raise NotStreamed(ended, waited)
    if silence.is_to_be_told(now):
        log.info("No worker has streamed the pipeline for %s; this task waits for `apply`.", format_duration(waited))


# -- The work of `LagTrigger`, `PhaseTrigger`, `CaughtUpTrigger` and `AdmissionTrigger`. -------------------------------

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
    except NotStreamed as silence:
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
    except NotStreamed as silence:
        yield TriggerEvent({"due": False, **_told(silence)})
        return
    yield TriggerEvent({"due": False})


async def _wait(
    trigger: PhaseTrigger | AdmissionTrigger, condition: Callable[[PipelineSnapshot], bool]
) -> PipelineSnapshot:
    waiting = await watcher(trigger.state_conn_id, trigger.pipeline)
    apply = ApplyTask(trigger.run_name, trigger.apply) if trigger.apply else None
    return await wait_while_streamed(waiting, condition, apply, trigger.grace, trigger.log)


def _told(silence: NotStreamed) -> dict[str, Any]:
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
