"""Runs the tasks of a DAG as Airflow would, in threads of the test: in their order, deferred ones in one event loop.

What Airflow's own processes add (the scheduler, the API, a worker's process per task) is not here; see
`tests.processes` for those. A task is started by what it is to do, so Clear and Retry are just `run` again.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Self
from unittest.mock import patch

from airflow.providers.common.compat.sdk import DownstreamTasksSkipped, TaskDeferred
from airflow.sdk import DAG, BaseOperator
from airflow.sdk.execution_time.context import OutletEventAccessors
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger

from airflow_provider_pgetl.connections import environment
from airflow_provider_pgetl.declarations import Replication
from airflow_provider_pgetl.engine.pipeline import Pipeline


@dataclass
class TaskInstance:
    dag_id: str
    task_id: str
    map_index: int = -1
    pushed: dict[str, Any] = field(default_factory=dict)
    try_number: int = 1
    previous: Any = None

    def get_previous_dagrun(self) -> Any:
        return self.previous

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


@dataclass
class Ran:
    """What came of one execution. `deferrals`: the triggers that it was deferred to; `value`: its XCom; `pushed`: those
    that it has pushed itself."""

    task: str
    value: Any = None
    pushed: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
    skipped: frozenset[str] = frozenset()
    deferrals: list[BaseTrigger] = field(default_factory=list)
    outlet_events: OutletEventAccessors = field(default_factory=OutletEventAccessors)

    @property
    def assets(self) -> set[str]:
        events = (event for key in self.outlet_events for event in self.outlet_events[key].asset_alias_events)
        return {event.dest_asset_key.uri for event in events}

    def must_succeed(self) -> Self:
        if self.error is not None:
            raise self.error
        return self


class MiniAirflow:
    """One run of a DAG. Tasks may be run singly, or all of them in the order of the DAG. There are no retries."""

    def __init__(self, dag: DAG, run_id: str = "run_1") -> None:
        self.dag = dag
        self.run_id = run_id
        self.states: dict[str, str] = {}
        self._asked = patch.object(RuntimeTaskInstance, "get_task_states", self._get_task_states)
        self._pool = ThreadPoolExecutor(64)
        self._loop = asyncio.new_event_loop()
        self._loop.set_debug(True)
        self._thread = threading.Thread(target=self._loop.run_forever, name="triggerer", daemon=True)
        self._thread.start()
        self._triggers: dict[str, tuple[asyncio.Task[Any], Future[Any]]] = {}

    def __enter__(self) -> Self:
        self._asked.start()
        return self

    def __exit__(self, *_: object) -> None:
        for task_id in list(self._triggers):
            self.cancel_trigger(task_id)
        self._pool.shutdown(cancel_futures=True)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._asked.stop()

    def start(self, task_id: str) -> Future[Ran]:
        return self._pool.submit(self.run, task_id)

    def run(self, task_id: str) -> Ran:
        ran = Ran(task_id)
        self.states[task_id] = "running"
        context = self._context(task_id, ran)
        task = self.dag.task_dict[task_id]
        call, arguments = "execute", {}
        while True:
            try:
                ran.value = getattr(task, call)(context, **arguments)
            except TaskDeferred as deferred:
                ran.deferrals.append(deferred.trigger)
                event = self._await(task_id, deferred.trigger)
                call, arguments = deferred.method_name, {**(deferred.kwargs or {}), "event": event}
                continue
            except DownstreamTasksSkipped as skip:
                ran.skipped = frozenset(skip.tasks)
            except Exception as error:
                ran.error = error
            self.states[task_id] = "failed" if ran.error else "success"
            return ran

    def run_all(self, task_ids: Iterable[str] | None = None) -> Mapping[str, Ran]:
        """Each task once all its upstream tasks among them have succeeded."""
        waiting = set(self.dag.task_dict if task_ids is None else task_ids)
        done: dict[str, Ran] = {}
        running: dict[str, Future[Ran]] = {}
        changed = threading.Condition()
        while waiting or running:
            for task_id in [one for one in waiting if self._may_run(one, waiting, running, done)]:
                waiting.discard(task_id)
                running[task_id] = future = self.start(task_id)
                future.add_done_callback(lambda _: _notify(changed))
            with changed:
                changed.wait(0.2)
            for task_id in [one for one, future in running.items() if future.done()]:
                done[task_id] = running.pop(task_id).result()
                waiting -= done[task_id].skipped
            if not running and not any(self._may_run(one, waiting, running, done) for one in waiting):
                break
        return done

    def cancel_trigger(self, task_id: str) -> None:
        """As a triggerer does that is to run it no more; waits for its end."""
        task, future = self._triggers.pop(task_id)
        self._loop.call_soon_threadsafe(task.cancel)
        wait([future], 30)

    def _may_run(self, task_id: str, waiting: set[str], running: Mapping[str, Any], done: Mapping[str, Ran]) -> bool:
        upstream = self.dag.task_dict[task_id].upstream_task_ids
        finished = all(one not in waiting and one not in running for one in upstream)
        return finished and all(done[one].error is None for one in upstream if one in done)

    def _await(self, task_id: str, trigger: BaseTrigger) -> Any:
        future = asyncio.run_coroutine_threadsafe(self._run_trigger(task_id, as_stored(trigger)), self._loop)
        return future.result()

    async def _run_trigger(self, task_id: str, trigger: BaseTrigger) -> Any:
        task, ended = asyncio.current_task(), Future[Any]()
        assert task is not None
        self._triggers[task_id] = (task, ended)
        try:
            return await first(trigger)
        finally:
            ended.set_result(None)

    def _get_task_states(self, *, dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, Any]:
        assert (dag_id, run_ids) == (self.dag.dag_id, [self.run_id])
        return {self.run_id: {one: self.states.get(one) for one in task_ids if one in self.dag.task_dict}}

    def _context(self, task_id: str, ran: Ran) -> Any:
        instance = TaskInstance(self.dag.dag_id, task_id, pushed=ran.pushed)
        return {"ti": instance, "run_id": self.run_id, "outlet_events": ran.outlet_events}


def task(dag: DAG, task_id: str) -> BaseOperator:
    found = dag.task_dict[task_id]
    assert isinstance(found, BaseOperator)
    return found


def executed(dag: DAG, task_id: str, method: str = "execute", **arguments: Any) -> Any:
    """What an execution returned, or came to: `TaskDeferred` is waiting."""
    ran = Ran(task_id)
    context = {"ti": TaskInstance("shop", task_id), "run_id": "r", "outlet_events": ran.outlet_events}
    try:
        return getattr(dag.task_dict[task_id], method)(context, **arguments)
    except (Exception, TaskDeferred) as outcome:
        return outcome


def pipeline_of(replication: Replication, kind: type[Pipeline] = Pipeline) -> Pipeline:
    """With Airflow's connections."""
    return kind(replication.spec, environment={**os.environ, **environment(replication.connections)})


async def first(trigger: BaseTrigger) -> Any:
    async for event in trigger.run():
        return event.payload
    raise AssertionError(f"{trigger} ended without an event")


def as_stored(trigger: BaseTrigger) -> Any:
    """As another process would have it: made from its serialised form."""
    _, kwargs = trigger.serialize()
    return type(trigger)(**kwargs)


async def first_stored(trigger: BaseTrigger) -> Any:
    return await first(as_stored(trigger))


class Lines:
    """A log."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def __getattr__(self, level: str) -> Any:
        return lambda message, *arguments: self.said.append((level, message % arguments))

    def has(self, words: str) -> bool:
        return any(words in message for _, message in self.said)


def _notify(condition: threading.Condition) -> None:
    with condition:
        condition.notify_all()
