"""A task's page in the book of its run, which the pipeline's own store keeps."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from asgiref.sync import sync_to_async

from airflow_provider_pgetl.engine.state.protocol import CompletionStore

if TYPE_CHECKING:
    from airflow.sdk import Context


# -- Retry or Clear? A task that finds its own completion in this run was cleared; one that does not is retried. -------
#
# Airflow's Clear takes downstream tasks along. Those must follow, not act: so a task counts as cleared *itself* only if
# no task before it, of its own table or of the pipeline, has completed since it last did. Nothing of Airflow's own is
# relied on: XComs are wiped by Clear, and counters of tries mean different things in different versions.
#
# Beside completions a task notes in the same book when it begins (`begun`), and when it has done what Clear asked of it
# (`obeyed`): what is retried after that must not do it again. Where `prepare` passes over the tasks of a table that is
# Ready, it notes that once for all of them (`passed_over`), and each counts as completed then.


def begun(task: str) -> str:
    """Under which name the book has it that the task began."""
    return f"{task}#begun"


def obeyed(task: str) -> str:
    """Under which name the book has it that the task did what its Clear asked for."""
    return f"{task}#obeyed"


def passed_over(task: str) -> str:
    """Under which name the book has it that the tasks of the same table, by their task group, were passed over."""
    return f"{task.rpartition('.')[0]}#passed_over"


def completed(task: str, completions: Mapping[str, float]) -> float | None:
    """When the task last completed, or was passed over."""
    return _last((task, passed_over(task)), completions)


def was_cleared(task: str, before: Iterable[str], completions: Mapping[str, float]) -> bool:
    """`completions`: when each task of this run last completed; `before`: the tasks that this one follows."""
    own = completed(task, completions)
    return own is not None and not _later(own, (*before, obeyed(task)), completions)


def is_repeated(task: str, before: Iterable[str], completions: Mapping[str, float]) -> bool:
    """Whether the task has begun in this run already, or was passed over, and is now retried or cleared: what it found
    wrong the last time somebody, or the clock, may have settled."""
    last = _last((begun(task), passed_over(task)), completions)
    return last is not None and not _later(last, before, completions)


def is_to_come(task: str, before: Iterable[str], completions: Mapping[str, float]) -> bool:
    """Whether the task has work before it in this run: under way, not begun, or behind one that has completed since."""
    own = completed(task, completions)
    return own is None or _later(own, (*before, begun(task)), completions)


def _last(tasks: Iterable[str], completions: Mapping[str, float]) -> float | None:
    return max((completions[one] for one in tasks if one in completions), default=None)


def _later(moment: float, tasks: Iterable[str], completions: Mapping[str, float]) -> bool:
    return any(completions.get(task, moment) > moment for task in tasks)


# -- Completion records. -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompletionRecord:
    """`is_cleared` and `is_repeated` are what the book said when the page was opened."""

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
        """What the Clear asked for is done."""
        self.store.record_completion(self.run, obeyed(self.task))


@dataclass(frozen=True, slots=True)
class ApplyTask:
    """The `apply` of a run, by the run's name in the book and the task's id."""

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


# -- How tasks stand, as Airflow says when it is asked; neither the pipeline's store nor a task itself knows. ----------
#
# Airflow may not say: its api-server restarts, or a task runs outside of it. Then nothing is concluded, and the
# question is asked again by whoever asks regularly.

_FOR_GOOD = ("failed", "upstream_failed")
_OVER = (*_FOR_GOOD, "success", "skipped", "removed")
_ALIVE = ["scheduled", "queued", "running", "deferred", "up_for_retry", "up_for_reschedule", "restarting"]

log = logging.getLogger(__name__)


async def failed_tasks(run: str, tasks: Collection[str]) -> frozenset[str]:
    """Of these tasks those that have failed for good; none of them where Airflow does not say. `run` as
    `completion_records.run_of` has it."""
    states = await sync_to_async(_states)(run, tasks)
    return frozenset(task for task, state in (states or {}).items() if state in _FOR_GOOD)


async def ended_tasks(run: str, tasks: Collection[str]) -> frozenset[str]:
    """Those of these tasks that have ended, however that was, and are not to run again by themselves."""
    states = await sync_to_async(_states)(run, tasks)
    return frozenset(task for task, state in (states or {}).items() if state in _OVER)


async def removed_tasks(run: str, tasks: Collection[str]) -> frozenset[str]:
    """Those of these tasks that the run's DAG does not have any more, as its file was edited meanwhile."""
    states = await sync_to_async(_states)(run, tasks)
    return frozenset(task for task, state in (states or {}).items() if state == "removed")


def how_apply_ended(apply: ApplyTask) -> str | None:
    """The state in which the run's `apply` has ended, ``"missing"`` where the run has none, if no other run of the DAG
    has one under way either. None: one streams, or will, or Airflow does not say."""
    states = _states(apply.run, [apply.task])
    if states is None:
        return None
    state = states.get(apply.task, "missing")
    if state not in (*_OVER, "missing"):
        return None
    return None if _is_alive_elsewhere(apply) else state


async def ahow_apply_ended(apply: ApplyTask) -> str | None:
    """The same, for code that runs in a triggerer: only from a thread of asgiref's its line to its supervisor can be
    used."""
    return await sync_to_async(how_apply_ended)(apply)


def _is_alive_elsewhere(apply: ApplyTask) -> bool:
    try:
        count = RuntimeTaskInstance.get_ti_count(dag_id=apply.dag_id, task_ids=[apply.task], states=_ALIVE)
    except AirflowRuntimeError as error:
        log.warning("Airflow does not say whether another run of %s streams: %s", apply.dag_id, error)
        return True
    return count > 0


def _states(run: str, tasks: Collection[str]) -> Mapping[str, str | None] | None:
    """None where Airflow does not say."""
    dag_id, _, run_id = run.partition("/")
    try:
        states = RuntimeTaskInstance.get_task_states(dag_id=dag_id, task_ids=list(tasks), run_ids=[run_id])
    except AirflowRuntimeError as error:
        log.warning("Airflow does not say how the tasks of %s stand: %s", run, error)
        return None
    found: Mapping[str, str | None] = states.get(run_id, {})
    return found
