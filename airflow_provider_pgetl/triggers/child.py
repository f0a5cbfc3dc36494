"""The streaming worker's process, as its supervisor in an event loop controls it.

The loop is shared with every other trigger, so nothing here computes: lines are read, counted and passed on. The
child's life line is its standard input: the child ends when that closes, also when this process is killed. Lines that
are sent to it, the heartbeats, show it that this process is not suspended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from airflow_provider_pgetl.engine.config.jobs import MODULE, Ending, Order
from airflow_provider_pgetl.engine.model.reports import Report, from_line, nobody

_GRACE_SECONDS = 12.0
_LINE_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 16
_REMEMBERED_BYTES = 4096
_BEATS = 6  # within the time for which the child waits for a heartbeat


class Child:
    """One child process, from `start` to its `Ending`."""

    def __init__(self, process: Process, observe: Callable[[Report], None], beat_seconds: float | None) -> None:
        self._process = process
        self.observe = observe
        self._said = b""
        self._errors = asyncio.create_task(self._remember())
        self._beats = asyncio.create_task(self._beat(beat_seconds))

    @classmethod
    async def start(cls, order: Order, observe: Callable[[Report], None]) -> Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", MODULE,
            stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True, limit=_LINE_BYTES,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(order.to_line().encode() + b"\n")
        with suppress(ConnectionError):  # it has ended already, and its ending is read below
            await process.stdin.drain()
        return cls(process, observe, order.beat_seconds)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ending(self) -> Ending | None:
        """Waits for the end of the process and returns its ending; None if it ended without reporting one."""
        assert self._process.stdout is not None
        ending = None
        async for raw in self._process.stdout:
            line = raw.decode(errors="replace")
            report = from_line(line)
            if report is not None:
                self.observe(report)
            else:
                ending = Ending.from_line(line) or ending
        await self._process.wait()
        await self._errors
        return ending

    @property
    def last_words(self) -> str:
        """The exit status, and the end of what the process wrote to standard error."""
        said = self._said.decode(errors="replace").strip() or "it said nothing"
        return f"exit status {self._process.returncode}: {said}"

    def let_go(self) -> None:
        """Asks the process to end, by closing its standard input."""
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.close()

    async def end(self) -> None:
        """Asks the process to end, waits for that for a limited time, and then kills it."""
        self.let_go()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _GRACE_SECONDS)
        self.kill()

    def kill(self) -> None:
        self._beats.cancel()
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _beat(self, seconds: float | None) -> None:
        stdin = self._process.stdin
        while seconds is not None and stdin is not None and not stdin.is_closing():
            stdin.write(b"\n")
            await asyncio.sleep(seconds / _BEATS)

    async def _remember(self) -> None:
        """Keeps the end of standard error. It is not read by lines: a line may be of any length, and a child blocks
        when its output is not read."""
        assert self._process.stderr is not None
        while chunk := await self._process.stderr.read(_CHUNK_BYTES):
            self._said = (self._said + chunk)[-_REMEMBERED_BYTES:]


# -- A trigger ends, and its stream goes on until the next trigger's worker is ready. ----------------------------------
#
# A run of a continuous DAG ends for the next one to take over, and `apply` resumes on a worker to call callbacks and
# defers again. Until the next trigger runs, Airflow starts two or three processes, which takes seconds, and on a busy
# scheduler minutes. So a child whose trigger ends for one of those reasons is not ended with it but left: it streams
# on, in this triggerer, for at most `LONGEST_SECONDS`. The next child waits for its lease meanwhile, with everything
# imported, and takes over as soon as it is released. Where the next trigger runs in this triggerer as well, the first
# report of its child ends the one that was left; where it runs in another, the time limit does.
#
# The time limit begins when the task has resumed and has ended or deferred again. While Airflow has it wait for a
# worker, which it does for as long as the DAG is paused, the child streams on.
#
# The reports of a child that was left are discarded: its trigger's log has ended. Errors that it finds are recorded in
# the state, where the next child reads them.
#
# What this does not do: outlive the triggerer. When that ends, the children's life lines are cut.

LONGEST_SECONDS: Final = 30.0
_LOOK_SECONDS = 3.0
# Code that destroys a pipeline waits this long for a child that was left: until it is asked to end, and has ended.
OVER_SECONDS: Final = LONGEST_SECONDS + 10.0

# A pipeline, by the connection of its state and its id: several may have the same id, each with a state database of its
# own.
Whose = tuple[str, str]

# The tasks of the children that were left, by pipeline; the event loop itself keeps no reference to a task.
_left: dict[Whose, dict[asyncio.Task[None], asyncio.Event]] = {}


def leave(
    pipeline: Whose,
    child: Child,
    ending: asyncio.Future[Ending | None],
    is_to_resume: Callable[[], Awaitable[bool]],
) -> None:
    """Lets the child stream on after its trigger has ended. `ending` reads what it reports, and continues to do so.
    `is_to_resume`: returns whether the task still waits for a worker, or runs on one."""
    child.observe = nobody
    relieved = asyncio.Event()
    task = asyncio.create_task(_stream_on(child, ending, relieved, is_to_resume))
    _left.setdefault(pipeline, {})[task] = relieved
    task.add_done_callback(lambda done: _forget(pipeline, done))


def relieve(pipeline: Whose) -> None:
    """Ends the children that were left: another is ready, or none is needed any more."""
    for relieved in _left.get(pipeline, {}).values():
        relieved.set()


def _forget(pipeline: Whose, task: asyncio.Task[None]) -> None:
    left = _left[pipeline]
    del left[task]
    if not left:
        del _left[pipeline]


async def _stream_on(
    child: Child,
    ending: asyncio.Future[Ending | None],
    relieved: asyncio.Event,
    is_to_resume: Callable[[], Awaitable[bool]],
) -> None:
    relief = asyncio.ensure_future(relieved.wait())
    either: set[asyncio.Future[Any]] = {ending, relief}
    over = time.monotonic() + LONGEST_SECONDS
    try:
        while not (await asyncio.wait(either, timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED))[0]:
            if await is_to_resume():
                over = time.monotonic() + LONGEST_SECONDS
            elif time.monotonic() >= over:
                break
    finally:
        relief.cancel()
        child.let_go()  # also when the triggerer ends: then the child ends without further supervision
    await child.end()
