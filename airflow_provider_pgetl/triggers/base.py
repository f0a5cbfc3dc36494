"""What all triggers of a pipeline share: their arguments, which are names and numbers to be stored, and the function
that does their work.

Airflow imports a trigger's class, and makes the trigger, in the event loop that all triggers of a triggerer share. So
this module and those of the classes import nothing of the engine; the module that does the work is imported in a
thread, when a trigger first runs.

Airflow stores a trigger's arguments, and they outlive an upgrade in both directions. So a new argument has a default,
one that was ever stored stays accepted, and one that this version does not have is ignored.

No trigger fires, or fails, in the first seconds after its start. A worker's supervisor may take 5 seconds to notice
that the process of a task that deferred has ended, and the scheduler another round to receive that. If the task is
queued anew by then, the scheduler takes that end for the new execution's ("finished with state success, but the task
instance's state attribute is queued"), and a retry is used for nothing.
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
    """A trigger whose events come from the function `work`, named ``module:function``, which is called with the
    trigger.

    `least_seconds`: for how many seconds after its start it neither fires nor fails.
    """

    work: ClassVar[str]
    least_seconds: ClassVar[float] = 10.0

    def stored(self) -> dict[str, Any]:
        """Returns the arguments from which the trigger can be made again."""
        raise NotImplementedError

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", self.stored()

    async def run(self) -> AsyncIterator[TriggerEvent]:
        due = time.monotonic() + self.least_seconds
        try:
            async for event in (await self._working())(self):
                await _until(due)
                yield event
        except Exception:  # Airflow fails the task as soon as this is raised
            await _until(due)
            raise

    async def _working(self) -> Work:
        module, _, function = self.work.partition(":")
        work: Work = getattr(await asyncio.to_thread(import_module, module), function)
        return work


class TableTrigger(PipelineTrigger):
    """A trigger that waits for a table, and fires as well when no stream will bring the table further in its run
    (`waiting`).

    :param pipeline: the pipeline's id.
    :param state_conn_id: the connection of the pipeline's state.
    :param table: ``[schema, name]``.
    :param run: the name of the run in the completion records.
    :param apply: the id of the run's task that streams. Without it, any stream may bring the table further, and the
        wait has no such bound.
    :param grace: for how many seconds no worker may stream before Airflow is asked whether the run's `apply` has ended.
    """

    def __init__(self, pipeline: str, state_conn_id: str, table: list[str], run: str, apply: str, grace: float) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.state_conn_id = state_conn_id
        self.table = table
        self.run_name = run
        self.apply = apply
        self.grace = grace

    def stored(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "state_conn_id": self.state_conn_id,
            "table": self.table,
            "run": self.run_name,
            "apply": self.apply,
            "grace": self.grace,
        }


async def _until(due: float) -> None:
    await asyncio.sleep(max(0.0, due - time.monotonic()))
