"""Completion records: when each task of an Airflow run began and completed, kept in the pipeline's store.

By them a task finds whether it is retried or was cleared. The end of the module asks Airflow for the states of tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from asgiref.sync import sync_to_async

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.engine.pipeline import CompletionStore


# -- Retry or Clear? A task that has already completed in this run was cleared; any other is retried. ------------------
#
# Airflow's Clear includes the downstream tasks. Those must follow, not act: a task counts as cleared *itself* only if
# no task before it, of its own table or of the pipeline, has completed since it last did. Nothing of Airflow's own is
# relied on: Clear deletes XComs, and counters of tries mean different things in different versions.
#
# Besides completions a task records when it begins (`begun`), and when it has done what its Clear asked for (`obeyed`):
# a retry after that must not do it again. Where `prepare` passes over the tasks of a table that is Ready, it records
# that once for all of them (`passed_over`), and each then counts as completed.


def begun(task: str) -> str:
    """Returns the name under which the beginning of the task is recorded."""
    return f"{task}#begun"


def obeyed(task: str) -> str:
    """Returns the name under which it is recorded that the task has done what its Clear asked for."""
    return f"{task}#obeyed"


def passed_over(task: str) -> str:
    """Returns the name under which it is recorded that all tasks of the task's table, those of its task group, were
    passed over."""
    return f"{task.rpartition('.')[0]}#passed_over"


def completed(task: str, completions: Mapping[str, float]) -> float | None:
    """Returns when the task last completed, or was passed over; None if neither has happened in this run."""
    return _last((task, passed_over(task)), completions)


def was_cleared(task: str, before: Iterable[str], completions: Mapping[str, float]) -> bool:
    """Returns whether the task itself was cleared, and has not yet done what the Clear asked for.

    `before`: the tasks that this one follows. `completions`: when each task of this run last completed, and the other
    records.
    """
    own = completed(task, completions)
    return own is not None and not _later(own, (*before, obeyed(task)), completions)


def is_repeated(task: str, before: Iterable[str], completions: Mapping[str, float]) -> bool:
    """Returns whether the task has already begun in this run, or was passed over, and is now retried or cleared. What
    it found wrong before may have been settled since, by a person, or because a timed retry is due."""
    last = _last((begun(task), passed_over(task)), completions)
    return last is not None and not _later(last, before, completions)


def is_to_come(task: str, before: Iterable[str], completions: Mapping[str, float]) -> bool:
    """Returns whether the task still has work to do in this run: it runs, has not begun, or a task before it has
    completed since it did."""
    own = completed(task, completions)
    return own is None or _later(own, (*before, begun(task)), completions)


def _last(tasks: Iterable[str], completions: Mapping[str, float]) -> float | None:
    return max((completions[one] for one in tasks if one in completions), default=None)


def _later(moment: float, tasks: Iterable[str], completions: Mapping[str, float]) -> bool:
    return any(completions.get(task, moment) > moment for task in tasks)


# -- Completion records. -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompletionRecord:
    """The completion record of one task of one run. `is_cleared` and `is_repeated` hold as of when the record was
    opened."""

    store: CompletionStore
    run: str
    task: str
    is_cleared: bool
    is_repeated: bool

    @classmethod
    def open(cls, store: CompletionStore, context: Context, before: Sequence[str]) -> CompletionRecord:
        run, task = run_of(context), task_of(context)
        known = store.completions(run)
        cleared, repeated = was_cleared(task, before, known), is_repeated(task, before, known)
        return cls(store, run, task, cleared, repeated)

    def begin(self) -> None:
        self.store.record_completion(self.run, begun(self.task))

    def obey(self) -> None:
        """Records that the task has done what its Clear asked for."""
        self.store.record_completion(self.run, obeyed(self.task))


@dataclass(frozen=True, slots=True)
class ApplyTask:
    """The `apply` of a run: the name of the run in the completion records (`run_of`), and the id of the task."""

    run: str
    task: str

    @property
    def dag_id(self) -> str:
        return self.run.partition("/")[0]


def run_of(context: Context) -> str:
    return f"{context['ti'].dag_id}/{context['run_id']}"


def task_of(context: Context) -> str:
    task, index = context["ti"].task_id, context["ti"].map_index
    return task if index is None or index < 0 else f"{task}[{index}]"


# -- The states of tasks, which only Airflow has; neither the pipeline's store nor a task itself does. -----------------
#
# Airflow may not answer: its api-server restarts, or a task runs outside of Airflow. Then nothing is concluded; callers
# that ask regularly ask again.

_FOR_GOOD = ("failed", "upstream_failed")
_RESUMING = ("scheduled", "queued", "running", "restarting")
_OVER = (*_FOR_GOOD, "success", "skipped", "removed")
_ALIVE = ["scheduled", "queued", "running", "deferred", "up_for_retry", "up_for_reschedule", "restarting"]

log = logging.getLogger(__name__)


async def failed_tasks(run: str, tasks: Collection[str]) -> frozenset[str]:
    """Returns those of these tasks that have failed and are not retried; none where Airflow does not answer. `run` is
    as `run_of` returns it."""
    states = await sync_to_async(_states)(run, tasks)
    return frozenset(task for task, state in (states or {}).items() if state in _FOR_GOOD)


async def ended_tasks(run: str, tasks: Collection[str]) -> frozenset[str]:
    """Returns those of these tasks that have ended in any state, and will not run again by themselves."""
    states = await sync_to_async(_states)(run, tasks)
    return frozenset(task for task, state in (states or {}).items() if state in _OVER)


async def is_to_resume(run: str, task: str) -> bool:
    """Returns whether a task that was deferred waits for a worker, or runs on one. In a DAG that is paused it waits."""
    states = await sync_to_async(_states)(run, [task])
    return (states or {}).get(task) in _RESUMING


async def removed_tasks(run: str, tasks: Collection[str]) -> frozenset[str]:
    """Returns those of these tasks that the run's DAG does not contain any more, because its file was edited during the
    run."""
    states = await sync_to_async(_states)(run, tasks)
    return frozenset(task for task, state in (states or {}).items() if state == "removed")


def failed_before(context: Context) -> datetime | None:
    """Returns when the previous run ended, if this task had failed in it; None also where this is not the task's first
    attempt in its run, which a person has asked for then, or a retry."""
    instance = context["ti"]
    if instance.try_number > 1:
        return None
    try:
        previous = instance.get_previous_dagrun()
    except AirflowRuntimeError as error:
        log.warning("Airflow does not say how the run before has ended: %s", error)
        return None
    if previous is None or previous.state != "failed":
        return None
    states = _states(f"{instance.dag_id}/{previous.run_id}", [instance.task_id]) or {}
    return previous.end_date if states.get(instance.task_id) == "failed" else None


def how_apply_ended(apply: ApplyTask) -> str | None:
    """Returns the state in which the run's `apply` has ended, or ``"missing"`` where the run has none, provided that no
    other run of the DAG has one under way either. Returns None if an `apply` streams or will stream, or if Airflow does
    not answer."""
    states = _states(apply.run, [apply.task])
    if states is None:
        return None
    state = states.get(apply.task, "missing")
    if state not in (*_OVER, "missing"):
        return None
    return None if _is_alive_elsewhere(apply) else state


async def ahow_apply_ended(apply: ApplyTask) -> str | None:
    """As `how_apply_ended`, for code that runs in a triggerer, whose channel to its supervisor can be used only from a
    thread of asgiref's."""
    return await sync_to_async(how_apply_ended)(apply)


def _is_alive_elsewhere(apply: ApplyTask) -> bool:
    try:
        count = RuntimeTaskInstance.get_ti_count(dag_id=apply.dag_id, task_ids=[apply.task], states=_ALIVE)
    except AirflowRuntimeError as error:
        log.warning("Airflow does not say whether another run of %s streams: %s", apply.dag_id, error)
        return True
    return count > 0


def _states(run: str, tasks: Collection[str]) -> Mapping[str, str | None] | None:
    """Returns the state of each task; None where Airflow does not answer."""
    dag_id, _, run_id = run.partition("/")
    try:
        states = RuntimeTaskInstance.get_task_states(dag_id=dag_id, task_ids=list(tasks), run_ids=[run_id])
    except AirflowRuntimeError as error:
        log.warning("Airflow does not say how the tasks of %s stand: %s", run, error)
        return None
    found: Mapping[str, str | None] = states.get(run_id, {})
    return found
