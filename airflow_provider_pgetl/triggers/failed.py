"""Which tasks of a run have failed for good: Airflow is asked, for no task can say it of itself."""

from __future__ import annotations

import logging
from collections.abc import Collection

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from asgiref.sync import sync_to_async

_FOR_GOOD = ("failed", "upstream_failed")

log = logging.getLogger(__name__)


async def failed_tasks(run: str, tasks: Collection[str]) -> frozenset[str]:
    """Of these tasks. `run` as `book.run_of` has it. None of them where Airflow cannot say: it is asked again."""
    dag_id, _, run_id = run.partition("/")
    try:
        # A thread of asgiref's: only from there the triggerer's own line to its supervisor can be used.
        states = await sync_to_async(RuntimeTaskInstance.get_task_states)(
            dag_id=dag_id, task_ids=list(tasks), run_ids=[run_id]
        )
    except AirflowRuntimeError as error:
        log.warning("Airflow does not say how the tasks of %s stand: %s", run, error)
        return frozenset()
    return frozenset(task for task, state in states.get(run_id, {}).items() if state in _FOR_GOOD)
