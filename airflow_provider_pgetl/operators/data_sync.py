"""The tasks of a table: `init`, which registers it, and `data_sync`, which copies it by Spark, together with the other
tables of its sync group.

Of the `data_sync` of several tables, the first that is admitted copies its whole group; the tasks of the group's other
tables find their tables in DataSync, wait without occupying a worker, and pass. A task also waits in this way where no
copy is admitted: how many groups are copied at once is the pipeline's `copy.table_workers`, counted in its store.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_pgetl.assets import source_asset
from airflow_provider_pgetl.engine.model.phases import COPYING, ERRORED, DataSync, Errored, Init, phase_name
from airflow_provider_pgetl.failures import PgetlFailure, errored, failure, unstreamed
from airflow_provider_pgetl.openlineage.tasks import Moves
from airflow_provider_pgetl.operators.base import TableOperator
from airflow_provider_pgetl.wording import in_airflow

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyResult
    from airflow_provider_pgetl.engine.pipeline import Pipeline
    from airflow_provider_pgetl.engine.spark.submission import CopyProcess


_LOOK_SECONDS = 1.0
_GRACE_SECONDS = 3.0
_A_RETRY = "A retry of this task rolls the table back and copies it again."


class DataSyncOperator(TableOperator):
    """Brings the table past DataSync.

    When it is cleared, it resets the table first; readers keep the old data until the new copy is published. Where no
    `init` is before it, it registers a table that was added to the DAG while the run was under way.
    """

    _process: CopyProcess | None = None
    _has_copied = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.inlets = [*self.inlets, source_asset(self.replication.connections.source, self.table)]

    def execute(self, context: Context) -> None:
        with self.pipeline("execute") as pipeline:
            record = self.begin(context, pipeline)
            if record.is_repeated and not record.is_cleared:
                self._go_back(context, pipeline)
            self._bring_on(context, pipeline)

    def resume(self, context: Context, event: dict[str, Any]) -> None:
        """Continues after a wait: for admission of the copy, for the copy by another task, or for the time of a
        retry."""
        self._has_copied = True
        with self.pipeline("resume", event=event) as pipeline:
            if event.get("unstreamed"):
                self._expect_left_to_copy(pipeline, event)
            if event.get("due"):
                self._go_back(context, pipeline)
                del event["due"]  # done: it is not to be done again after an outage
            self._bring_on(context, pipeline)

    def on_kill(self) -> None:
        """Stops the application, which removes what it staged when its life line is cut; if it does not end, its
        session is killed."""
        if self._process is not None:
            self._process.stop(_GRACE_SECONDS)

    @property
    def moves(self) -> Moves:
        return Moves((self.table,), copies=True, has_copied=self._has_copied)

    def _expect_left_to_copy(self, pipeline: Pipeline, event: dict[str, Any]) -> None:
        """Raises if the table still has to be copied: no worker streams, so no copy is admitted."""
        phase = pipeline.state(self.table).phase
        if phase_name(phase) in COPYING:
            raise unstreamed(self.table, phase_name(phase), self.apply, event)

    def _go_back(self, context: Context, pipeline: Pipeline) -> None:
        """Rolls an Errored table back: its cause has been settled, or its timed retry is due. Waits until it is due."""
        phase = pipeline.state(self.table).phase
        if not isinstance(phase, Errored):
            return
        self.expect_stream(context, pipeline)
        left = (phase.retry_policy.at or 0.0) - pipeline.now()
        if left > 0:
            self.log.info("%s is Errored until its next attempt: %s", self.table, phase.reason)
            self._wait(context, not_before=time.time() + left)
        state = pipeline.rollback_from(ERRORED, self.table)
        self.log.info("%s goes on from %s.", self.table, phase_name(state.phase))

    def _bring_on(self, context: Context, pipeline: Pipeline) -> None:
        pipeline.roll_back_dead_copies()
        phase = pipeline.state(self.table).phase
        if isinstance(phase, Init):
            self._copy(context, pipeline)
            phase = pipeline.state(self.table).phase
        if isinstance(phase, Errored):
            raise errored(self.table, phase, _A_RETRY)
        if isinstance(phase, DataSync):
            self.log.info("%s is being copied by another task, together with others.", self.table)
            self._wait(context)
        if phase_name(phase) in COPYING:
            raise PgetlFailure(f"{self.table} was set back to {phase_name(phase)} meanwhile. {_A_RETRY}")
        self.log.info("%s is in %s.", self.table, phase_name(phase))
        self.complete(context, pipeline)

    def _copy(self, context: Context, pipeline: Pipeline) -> None:
        with pipeline.admitted_copy(self.table) as job:
            if job is not None:
                self._run(job, pipeline)
                return
        if isinstance(pipeline.state(self.table).phase, Init):
            capacity = self.replication.spec.copy.table_workers
            if pipeline.is_paused:
                self.log.warning("The pipeline is paused: %s is copied when it is resumed.", self.table)
                self._wait(context)
            self.log.info("%s waits for capacity: %d groups are copied or catch up at once.", self.table, capacity)
            if not pipeline.is_streamed:
                self.log.warning("`apply` is not running: groups that are copied cannot be handed over to it.")
            self._wait(context)

    def _run(self, job: CopyJob, pipeline: Pipeline) -> None:
        """Copies the group. The outcome for each table is in the store."""
        from airflow_provider_pgetl.engine.spark.submission import COPY
        from airflow_provider_pgetl.spark_submission import submit

        self._has_copied = True
        names = ", ".join(str(table.source) for table in job.tables)
        self.log.info("Copying %s as attempt %s.", names, job.attempt)
        self._process = submit(COPY, job, self.replication.spark_conn_id, self.observer(), self.environment())
        try:
            result = None
            while result is None:
                result = self._process.wait(_LOOK_SECONDS)
        finally:
            self._process.stop(_GRACE_SECONDS)
        self._judge(result, pipeline)

    def _judge(self, result: CopyResult, pipeline: Pipeline) -> None:
        """Fails if the copy failed and the store does not have the table copied: an application that could not report
        its outcome may have done its work."""
        for table, why in result.failed.items():
            self.log.error("%s could not be copied: %s", table, in_airflow(str(why)))
        is_settled = phase_name(pipeline.state(self.table).phase) not in COPYING
        if result.failure is not None and not is_settled:
            raise failure(result.failure.error)  # the servers may be out of reach of Spark alone

    def _wait(self, context: Context, *, not_before: float | None = None) -> NoReturn:
        from airflow_provider_pgetl.triggers.pgetl import AdmissionTrigger

        spec = self.replication.spec
        trigger = AdmissionTrigger(
            spec.id,
            self.replication.connections.state,
            [self.table.schema, self.table.name],
            spec.copy.table_workers,
            not_before,
            **self.waiting_for_stream(context),
        )
        self.defer(trigger=trigger, method_name="resume", timeout=None)
        raise AssertionError("deferring raises")


# -- `init`: registers the table. Clearing it resets the table. --------------------------------------------------------


class InitOperator(TableOperator):
    """Checks that the table is registered, and registers a table that was added to the DAG while the run was under way.
    When it is cleared, it resets the table and deletes its stored schemas."""

    def execute(self, context: Context) -> None:
        with self.pipeline("execute") as pipeline:
            self.begin(context, pipeline)
            self.log.info("%s is in %s.", self.table, phase_name(pipeline.state(self.table).phase))
            self.complete(context, pipeline)

    def after_reset(self, pipeline: Pipeline) -> None:
        pipeline.forget_copy(self.table)
