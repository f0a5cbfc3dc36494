"""How tasks stand, as Airflow says when it is asked; neither the pipeline's store nor a task itself knows.

Airflow may not say: its api-server restarts, or a task runs outside of it. Then nothing is concluded, and the question
is asked again by whoever asks regularly.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from asgiref.sync import sync_to_async

from airflow_provider_pgetl.book import ApplyTask

_FOR_GOOD = ("failed", "upstream_failed")
_OVER = (*_FOR_GOOD, "success", "skipped", "removed")
_ALIVE = ["scheduled", "queued", "running", "deferred", "up_for_retry", "up_for_reschedule", "restarting"]

log = logging.getLogger(__name__)


async def failed_tasks(run: str, tasks: Collection[str]) -> frozenset[str]:
    """Of these tasks those that have failed for good; none of them where Airflow does not say. `run` as `book.run_of`
    has it."""
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
