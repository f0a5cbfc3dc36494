"""`prepare`: makes source, store and destination ready for the declared tables, or refuses with a remedy."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, DownstreamTasksSkipped

from airflow_provider_pgetl.completion_records import begun, failed_before, passed_over, run_of
from airflow_provider_pgetl.engine.model.phases import Ready
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.operators.base import PipelineOperator, is_continuous

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.engine.pipeline import Pipeline


_BACKFILL = "backfill"
_PAUSE = timedelta(minutes=5)
_LEAST = timedelta(seconds=15)  # what is shorter is not worth a deferral


class PrepareOperator(PipelineOperator):
    """Runs preflight and migrations, and brings publication, lineage, tables and slots into the declared state. What is
    in that state already is not changed.

    The tasks of tables that are Ready already are passed over: a run over hundreds of them would cost Airflow minutes
    and do nothing. They count as completed in this run, so that clearing one of them has its usual effect. A task that
    is followed by tasks of the DAG's author is not passed over.

    Airflow starts a run of a continuous DAG as soon as the one before has failed. Where `prepare` refuses what only a
    person can settle, that would be a failed run, and its callbacks, every few seconds; so `prepare` begins five
    minutes after the one of the previous run has failed, or when it is cleared.

    `table_tasks`: the ids of each table's tasks, in their order. `own_tasks`: those of the pipeline that follow them.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Not a dict: OpenLineage's provider can be configured to send all attributes of tasks, and such keys are not
        # valid JSON.
        self.table_tasks: UserDict[TableName, list[str]] = UserDict()
        self.own_tasks: set[str] = set()

    def execute(self, context: Context) -> None:
        from airflow_provider_pgetl.spark_submission import spark_connection

        _refuse_backfill(context)
        self._pause_after_failure(context)
        with self.pipeline("execute") as pipeline:
            # Before anything is created that would have to be cleaned up.
            spark_connection(self.spark_conn_id)
            prepared = pipeline.prepare()
            self.log.info("%d tables are declared and fit to be replicated.", len(prepared.sizes))
            self.complete(context, pipeline)
            idle = self._pass_over(context, pipeline)
        if idle:
            # Not through SkipMixin, which would skip a task again when a person clears it.
            raise DownstreamTasksSkipped(tasks=idle)

    def resume_after_pause(self, context: Context, event: Any) -> None:
        del event
        self.execute(context)

    def _pause_after_failure(self, context: Context) -> None:
        """Defers the task in a continuous DAG, if it has just failed in the previous run."""
        from airflow.providers.standard.triggers.temporal import DateTimeTrigger

        failed_at = failed_before(context) if is_continuous(self.dag) else None
        if failed_at is None or failed_at + _PAUSE - datetime.now(UTC) < _LEAST:
            return
        self.log.warning(
            "`%s` of the run before has failed at %s; its log says why. A continuous DAG begins a run as soon as one "
            "has ended, so this one waits until %s. Clear this task to have it begin now.",
            self.task_id,
            f"{failed_at:%H:%M:%S %Z}",
            f"{failed_at + _PAUSE:%H:%M:%S %Z}",
        )
        self.defer(trigger=DateTimeTrigger(failed_at + _PAUSE), method_name="resume_after_pause", timeout=None)

    def _pass_over(self, context: Context, pipeline: Pipeline) -> list[str]:
        """Returns the tasks that have nothing to do, and records them as passed over."""
        known = pipeline.states()
        ready = [one for one in self.table_tasks if one in known and isinstance(known[one].phase, Ready)]
        if not ready:
            return []
        idle = {table: [one for one in self.table_tasks[table] if not self._is_followed(table, one)] for table in ready}
        pipeline.completion_records.record_completions(run_of(context), sorted(self._noted(idle)))
        self.log.info("%d of them are Ready: their own tasks have nothing to do.", len(ready))
        return [task for tasks in idle.values() for task in tasks]

    def _is_followed(self, table: TableName, task: str) -> bool:
        """Returns whether a task that is not the pipeline's own follows this one."""
        assert self.dag is not None
        return not self.dag.task_dict[task].downstream_task_ids <= {*self.table_tasks[table], *self.own_tasks}

    def _noted(self, idle: Mapping[TableName, Sequence[str]]) -> Iterator[str]:
        """Yields the names to be recorded: a single one for a table whose tasks are all passed over."""
        for table, tasks in idle.items():
            if len(tasks) == len(self.table_tasks[table]):
                yield passed_over(tasks[0])
            else:
                yield from tasks
                yield from map(begun, tasks)


def _refuse_backfill(context: Context) -> None:
    """Raises if the run is a backfill, which a DAG of the user's own may have: a replication brings the present state,
    and cannot fill the past."""
    run = context.get("dag_run")
    if run is not None and run.run_type == _BACKFILL:
        raise AirflowFailException(
            "A backfill replicates nothing: its runs are beside each other, and a replica is brought to what its "
            "source is now. Let an ordinary run do it."
        )
