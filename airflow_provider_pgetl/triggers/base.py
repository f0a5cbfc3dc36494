"""What all triggers of a pipeline are: names and numbers to be stored, and where the work is that they stand for.

Airflow imports a trigger's class, and makes the trigger, in the event loop that all triggers of a triggerer share. So
this module and those of the classes import nothing of the engine; the module that does the work is imported in a
thread, when a trigger first runs.

Airflow stores a trigger's arguments, and they outlive an upgrade in both directions. So an argument that is new has a
default, one that was ever stored stays accepted, and one that this version does not know is let go.

No trigger fires, or fails, in the first seconds of its life. A worker's supervisor may take 5 seconds to notice that
the process of a task that deferred has ended, and the scheduler another round to hear of it. If the task is queued anew
by then, the scheduler takes that end for the new execution's ("finished with state success, but the task instance's
state attribute is queued"), and a retry is spent for nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

Work = Callable[[Any], AsyncIterator[TriggerEvent]]


class PipelineTrigger(BaseTrigger):
    """`work` is ``module:function``; the function is given the trigger and answers its events."""

    work: ClassVar[str]
    least_seconds: ClassVar[float] = 10.0

    def stored(self) -> dict[str, Any]:
        """The arguments by which it is made again."""
        raise NotImplementedError

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", self.stored()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        due = time.monotonic() + self.least_seconds
        try:
            async for event in (await self._working())(self):
                await _until(due)
                yield event
        except Exception:  # as soon as it is out, Airflow fails the task
            await _until(due)
            raise

    async def _working(self) -> Work:
        module, _, function = self.work.partition(":")
        work: Work = getattr(await asyncio.to_thread(import_module, module), function)
        return work


async def _until(due: float) -> None:
    await asyncio.sleep(max(0.0, due - time.monotonic()))
