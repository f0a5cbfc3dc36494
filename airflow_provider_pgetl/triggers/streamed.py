"""Waiting for a table that only a stream brings further: for as long as somebody streams, or will.

A wait looks at the pipeline's lease. When nobody has held it for a while (the grace), or the state could not be read
for so long, Airflow is asked for the `apply` of the run. One that is under way, waits for a retry or has not begun will
stream, so the wait goes on, and says so once a minute. If it has ended, and no other run of the DAG has one, nobody
will ever bring the table further in this run: `NobodyStreams`. While the pipeline is paused its worker holds the lease,
so the wait goes on, and says why once.

Triggers that an earlier version has stored know of no `apply`; they wait without a bound, as they did.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow.triggers.base import TriggerEvent

from airflow_provider_pgetl.book import ApplyTask
from airflow_provider_pgetl.engine.quantities import format_duration
from airflow_provider_pgetl.engine.state.watching import Picture, Watcher
from airflow_provider_pgetl.task_states import ahow_apply_ended
from airflow_provider_pgetl.triggers.minutes import Log

if TYPE_CHECKING:
    from airflow_provider_pgetl.triggers.stream import StreamTrigger

_ROUND_SECONDS = 2.0
_TELL_SECONDS = 60.0


class NobodyStreams(Exception):
    """`ended`: how the `apply` of the run did."""

    def __init__(self, ended: str, seconds: float) -> None:
        super().__init__(ended)
        self.ended = ended
        self.seconds = seconds


@dataclass
class Silence:
    """For how long nobody has been seen to stream. Pure; `now` in seconds by any clock."""

    grace: float
    since: float
    _asked: float = 0.0
    _told: float = 0.0

    def __post_init__(self) -> None:
        self._asked = self._told = self.since

    def end(self, now: float) -> None:
        """Somebody streams."""
        self.since = self._asked = self._told = now

    def is_to_be_asked(self, now: float) -> bool:
        """Whether Airflow is to be asked, for each grace that passes once."""
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
    """For `StreamTrigger`."""
    apply = ApplyTask(trigger.run_name, trigger.apply)
    while time.time() < trigger.until:
        if await ahow_apply_ended(apply) is None:
            yield TriggerEvent({"streamed": True})
            return
        await asyncio.sleep(_ROUND_SECONDS)
    yield TriggerEvent({"streamed": False})


async def wait_while_streamed(
    watcher: Watcher, condition: Callable[[Picture], bool], apply: ApplyTask | None, grace: float, log: Log
) -> Picture:
    """What the pipeline was when `condition` held; `NobodyStreams` if it cannot come to hold in the run any more."""
    silence = Silence(grace, time.monotonic())
    paused = False

    def judge(picture: Picture) -> bool:
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
