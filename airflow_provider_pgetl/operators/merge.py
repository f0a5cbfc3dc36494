"""`merge`: merges what has landed beside the tables of a lake into them, by Spark."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from airflow_provider_pgetl.engine.config.validation import refuse
from airflow_provider_pgetl.operators.base import AnnouncingOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.engine.config.jobs import MergeResult
    from airflow_provider_pgetl.engine.spark.submission import Job, SparkProcess


class MergeOperator(AnnouncingOperator):
    """Merges, once, all that has landed for a pipeline with ``merge = "spark"``; where nothing has, no Spark is
    started.

    A replication that runs `until="caught_up"` has this task after `apply`. For one that streams on, schedule it as
    often as readers need new data::

        with DAG("shop_merge", schedule="*/30 * * * *", max_active_runs=1, catchup=False):
            MergeOperator(task_id="merge", replication=shop.replication)

    Overlapping merges do no harm, but do work in vain.

    :param replication: what a `ReplicationDag` or a `ReplicationTaskGroup` has as `replication`.
    :param announces: whether the task updates the assets of the tables that have changed.
    """

    _stop: threading.Event | None = None

    def __init__(self, *, announces: bool = True, **kwargs: Any) -> None:
        super().__init__(announces=announces, **kwargs)
        if not self.replication.spec.destination.lands:
            complaint = "its changes do not land to be merged by Spark."
            remedy = 'Declare its destination as DeltaLake(…, options={"merge": "spark"}), or leave this task out.'
            refuse("replication", complaint, remedy=remedy)

    def execute(self, context: Context) -> None:
        self._stop = threading.Event()
        with self.pipeline("execute") as pipeline:
            result = pipeline.merge(stop=self._stop, launch=self._launch)
            for table, why in result.failed.items():
                self.log.error("%s could not be merged: %s", table, why)
            result.expect_whole()
            self.announce(context, pipeline)
            self.complete(context, pipeline)

    def on_kill(self) -> None:
        """Stops the merge. What it has committed stays."""
        if self._stop is not None:
            self._stop.set()

    def _launch(self, job: Job) -> SparkProcess[MergeResult]:
        from airflow_provider_pgetl.engine.spark.submission import MERGE
        from airflow_provider_pgetl.spark_submission import submit

        return submit(MERGE, job, self.spark_conn_id, self.observer(), self.environment())
