"""The triggers, as Airflow stores them: their arguments, which are names and numbers, and the name of the function that
does their work, in `waiting` or `supervisor`.

Airflow imports a trigger's class, and makes the trigger, in the event loop that all triggers of a triggerer share. So
this module imports nothing of the engine; the module that does the work is imported in a thread, when a trigger first
runs.

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

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

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


class ApplyTrigger(PipelineTrigger):
    """Keeps the streaming worker running, as `supervisor` describes: until the pipeline has caught up, or until
    `rotate_at` (seconds since the Unix epoch), or for ever.

    :param replication: the declaration, with the ids of connections and no secret.
    :param until_caught_up: whether the stream ends when the pipeline has caught up.
    :param rotate_at: when the stream ends so that the next run takes over; None: never.
    :param run: the name of the run in the completion records.
    :param copiers: the tasks of the run that copy (`supervisor_decisions.Copier`). A table that is to be copied, and
        that none of them will copy any more, ends the stream too.
    :param tells: whether a table that becomes Errored interrupts the stream, so that a worker calls the callbacks.
    :param told: the occasions (`ErroredTable.mark`) for which callbacks have been called already.
    :param fail_after: for how many seconds a table may be Errored before that ends the stream; None for ever.
    :param callbacks: `AsyncCallback`s, as they are serialised, that are called in the triggerer instead, without
        interrupting the stream.
    """

    work = "airflow_provider_pgetl.triggers.supervisor:supervise"

    def __init__(
        self,
        replication: dict[str, Any],
        until_caught_up: bool = False,
        rotate_at: float | None = None,
        run: str = "",
        copiers: list[Any] | None = None,
        tells: bool = False,
        told: list[Any] | None = None,
        fail_after: float | None = None,
        callbacks: list[Any] | None = None,
        **_unknown: Any,
    ) -> None:
        super().__init__()
        self.replication = replication
        self.until_caught_up = until_caught_up
        self.rotate_at = rotate_at
        self.run_name = run
        self.copiers = copiers or []
        self.tells = tells
        self.told = told or []
        self.fail_after = fail_after
        self.callbacks = callbacks or []

    def stored(self) -> dict[str, Any]:
        return {
            "replication": self.replication,
            "until_caught_up": self.until_caught_up,
            "rotate_at": self.rotate_at,
            "run": self.run_name,
            "copiers": self.copiers,
            "tells": self.tells,
            "told": self.told,
            "fail_after": self.fail_after,
            "callbacks": self.callbacks,
        }


class PhaseTrigger(TableTrigger):
    """Fires when the table is in one of `phases`, or does not exist any more; at the time `until`, if there is one; or
    when no stream will bring the table further in its run (`waiting`).

    :param phases: the names of the phases.
    :param until: seconds since the Unix epoch, or None.
    """

    work = "airflow_provider_pgetl.triggers.waiting:phase"

    def __init__(
        self,
        pipeline: str,
        state_conn_id: str,
        table: list[str],
        phases: list[str],
        until: float | None = None,
        run: str = "",
        apply: str = "",
        grace: float = 180.0,
        **_unknown: Any,
    ) -> None:
        super().__init__(pipeline, state_conn_id, table, run, apply, grace)
        self.phases = phases
        self.until = until

    def stored(self) -> dict[str, Any]:
        return {**super().stored(), "phases": self.phases, "until": self.until}


class LagTrigger(PipelineTrigger):
    """Fires when the lag is within the limit.

    :param pipeline: the pipeline's id.
    :param state_conn_id: the connection of the pipeline's state.
    :param most_bytes: the limit in bytes of WAL, or None.
    :param most_seconds: the limit in seconds, or None.
    """

    work = "airflow_provider_pgetl.triggers.waiting:lag"

    def __init__(
        self, pipeline: str, state_conn_id: str, most_bytes: int | None, most_seconds: float | None, **_unknown: Any
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.state_conn_id = state_conn_id
        self.most_bytes = most_bytes
        self.most_seconds = most_seconds

    def stored(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "state_conn_id": self.state_conn_id,
            "most_bytes": self.most_bytes,
            "most_seconds": self.most_seconds,
        }


class CaughtUpTrigger(PipelineTrigger):
    """Fires when everything before `position` is in the destination, when the table is not Ready any more, or when the
    task `follows` of the run, which brings the table to the position, has ended.

    :param pipeline: the pipeline's id.
    :param state_conn_id: the connection of the pipeline's state.
    :param table: ``[schema, name]``.
    :param position: a position in the source's WAL; None waits for the end of the task alone.
    :param run: the name of the run in the completion records.
    :param follows: the id of the task.
    """

    work = "airflow_provider_pgetl.triggers.waiting:caught_up"

    def __init__(
        self,
        pipeline: str,
        state_conn_id: str,
        table: list[str],
        position: str | None,
        run: str,
        follows: str,
        **_unknown: Any,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.state_conn_id = state_conn_id
        self.table = table
        self.position = position
        self.run_name = run
        self.follows = follows

    def stored(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "state_conn_id": self.state_conn_id,
            "table": self.table,
            "position": self.position,
            "run": self.run_name,
            "follows": self.follows,
        }


class AdmissionTrigger(TableTrigger):
    """Fires when `data_sync` has something to do for the table; at the time `not_before`, if there is one; or when no
    worker streams, so that no copy will be admitted (`waiting`).

    :param capacity: how many groups may be copied or catch up at once.
    :param not_before: seconds since the Unix epoch; None waits for the table instead of a time.
    """

    work = "airflow_provider_pgetl.triggers.waiting:admission"

    def __init__(
        self,
        pipeline: str,
        state_conn_id: str,
        table: list[str],
        capacity: int,
        not_before: float | None = None,
        run: str = "",
        apply: str = "",
        grace: float = 180.0,
        **_unknown: Any,
    ) -> None:
        super().__init__(pipeline, state_conn_id, table, run, apply, grace)
        self.capacity = capacity
        self.not_before = not_before

    def stored(self) -> dict[str, Any]:
        return {**super().stored(), "capacity": self.capacity, "not_before": self.not_before}


class StreamTrigger(PipelineTrigger):
    """Fires when the `apply` of the run, or of another run of its DAG, has not ended; or at the time `until`.

    :param run: the name of the run in the completion records.
    :param apply: the id of the task.
    :param until: seconds since the Unix epoch.
    """

    work = "airflow_provider_pgetl.triggers.waiting:await_apply"

    def __init__(self, run: str, apply: str, until: float, **_unknown: Any) -> None:
        super().__init__()
        self.run_name = run
        self.apply = apply
        self.until = until

    def stored(self) -> dict[str, Any]:
        return {"run": self.run_name, "apply": self.apply, "until": self.until}


class ChangesTrigger(PipelineTrigger, BaseEventTrigger):
    """Fires each time that the replica of a table has changed; at most once in `at_most_every` seconds.

    :param pipeline: the pipeline's id.
    :param state_conn_id: the connection of the pipeline's state.
    :param table: ``[schema, name]``.
    :param at_most_every: in seconds; changes within this time are one event.
    """

    work = "airflow_provider_pgetl.triggers.waiting:announce_changes"

    def __init__(
        self, pipeline: str, state_conn_id: str, table: list[str], at_most_every: float, **_unknown: Any
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.state_conn_id = state_conn_id
        self.table = table
        self.at_most_every = at_most_every

    def stored(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "state_conn_id": self.state_conn_id,
            "table": self.table,
            "at_most_every": self.at_most_every,
        }


class OutageTrigger(PipelineTrigger):
    """Fires when all of the pipeline's PostgreSQL servers accept connections, or at the time `until`, but not before
    `pause` seconds have passed.

    :param pipeline: the pipeline's id.
    :param connections: the ids of the pipeline's connections.
    :param pause: seconds before the first attempt to connect; the pauses then grow.
    :param until: seconds since the Unix epoch; None waits without a bound.
    """

    work = "airflow_provider_pgetl.triggers.waiting:reach"

    def __init__(
        self,
        pipeline: str,
        connections: dict[str, str | None],
        pause: float = 5.0,
        until: float | None = None,
        **_unknown: Any,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.connections = connections
        self.pause = pause
        self.until = until

    def stored(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "connections": self.connections,
            "pause": self.pause,
            "until": self.until,
        }
