"""`apply`, which runs the streaming worker for as long as it is needed, without occupying a worker slot; and `merge`,
which merges what `apply` has landed beside the tables of a lake."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_pgetl.assets import source_asset
from airflow_provider_pgetl.completion_records import run_of
from airflow_provider_pgetl.declarations import seconds_of
from airflow_provider_pgetl.engine.config.validation import refuse
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.errored_tables import ErroredTable, call_back, errored_tables
from airflow_provider_pgetl.failures import errored_while_streaming, failure
from airflow_provider_pgetl.operators.base import OUTAGES, AnnouncingOperator, TableOperator, is_continuous

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.engine.config.jobs import MergeResult
    from airflow_provider_pgetl.engine.pipeline import Pipeline
    from airflow_provider_pgetl.engine.spark.submission import Job, SparkProcess


_GAPS = (ErrorKind.SLOT_LOST.value, ErrorKind.LINEAGE.value)


class ApplyOperator(AnnouncingOperator):
    """Streams the changes of all tables. It defers at once to `ApplyTrigger`, which supervises the worker's process.

    Where changes land to be merged by a task of their own, that task updates the assets.

    When a table becomes Errored while it is streamed, the declared callbacks (`Streaming`) are called, and, if that is
    declared, the task fails: the table's own tasks have passed, and a run must not succeed with an Errored table.

    :param replication: what a `ReplicationDag` or a `ReplicationTaskGroup` has as `replication`.
    :param until: ``"caught_up"`` ends when everything committed before the start is durable and no table is on its way
        to Ready; None streams on.
    :param rotate_after: the time after which a run that streams on is ended cleanly, so that the next run takes over
        and logs are uploaded; None: never.
    """

    def __init__(
        self,
        *,
        until: Literal["caught_up"] | None = None,
        rotate_after: str | timedelta | None = timedelta(days=1),
        **kwargs: Any,
    ) -> None:
        lands = kwargs["replication"].spec.destination.lands
        super().__init__(announces=until == "caught_up" and not lands, **kwargs)
        source = self.replication.connections.source
        self.inlets = [*self.inlets, *(source_asset(source, table) for table in self.replication.tables)]
        self.copiers: list[TableOperator] = []
        self.tolerance = self.replication.tolerance
        self.on_table_errored = self.replication.on_table_errored
        self.until = until
        self.rotate_after = None if rotate_after is None else seconds_of("rotate_after", rotate_after)

    def execute(self, context: Context) -> None:
        rotate_at = None if self.rotate_after is None else time.time() + self.rotate_after
        self._stream(context, None if self.until else rotate_at)

    def _stream(self, context: Context, rotate_at: float | None, told: Sequence[Any] = ()) -> NoReturn:
        from airflow_provider_pgetl.triggers.pgetl import ApplyTrigger
        from airflow_provider_pgetl.triggers.supervisor_decisions import Copier

        here = [each for each in self.on_table_errored if callable(each)]
        there = [each for each in self.on_table_errored if not callable(each)]
        trigger = ApplyTrigger(
            self.owned.as_json(),
            until_caught_up=self.until == "caught_up",
            rotate_at=rotate_at,
            run=run_of(context),
            copiers=[Copier(one.table, one.task_id, one.before).as_json() for one in self.copiers],
            tells=bool(here),
            callbacks=[] if here else [each.serialize() for each in there],
            told=list(told),
            fail_after=self._fail_after(),
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=None)
        raise AssertionError("deferring raises")

    def execute_complete(self, context: Context, event: dict[str, Any]) -> str:
        """Handles the event with which the trigger has ended."""
        if event["status"] == "errored":
            self._interrupted(context, event)
        if event["status"] == "edited":
            self._follow_the_file(context, event)
        if event["status"] == "copy_needed":
            self._say_who_is_left(event["tables"])
        if self._begins_anew(event):
            self.log.warning("%s The run ends, and the next one copies again what is concerned.", event["message"])
            return "begin_anew"
        if event["status"] == "failed":
            raise failure(PgetlError(ErrorKind(event["kind"]), event["message"], remedy=event["remedy"] or None))
        with self.pipeline("execute_complete", event=event) as pipeline:
            if event["status"] == "caught_up":
                self.announce(context, pipeline)
            self.complete(context, pipeline)
            errored = self._errored_in_this_run(context, pipeline)
        self._judge_at_the_end(context, errored, event.get("told", ()))
        self.log.info("The stream ended: %s.", event["status"].replace("_", " "))
        return str(event["status"])

    def _follow_the_file(self, context: Context, event: dict[str, Any]) -> NoReturn:
        """Takes over what the DAG's file declares now, and streams on. Where a server is out of reach, the next trigger
        finds the removed tables once more."""
        try:
            with self.opened() as pipeline:
                pipeline.follow_declaration()
        except PgetlError as error:
            if error.kind not in OUTAGES:
                raise failure(error) from error
            self.log.warning("%s Tables that were removed from the file are unregistered later.", error.message)
        self._stream(context, event["rotate_at"], event.get("told", ()))

    # -- Tables that have become Errored. ------------------------------------------------------------------------------

    def _fail_after(self) -> float | None:
        """Returns for how many seconds a table may be Errored before that ends the stream; None for ever. A run that
        ends by itself is judged at its end; where no other run follows at once, ending the stream would stop the other
        tables too."""
        chosen = self.tolerance.fail_on_error
        if self.until == "caught_up" or chosen is False:
            return None
        if chosen is None:
            return 0.0 if is_continuous(self.dag) else None
        return 0.0 if chosen is True else chosen

    def _interrupted(self, context: Context, event: dict[str, Any]) -> NoReturn:
        """Calls the callbacks that only a worker can call; then streams on, unless the run is to fail."""
        untold = [ErroredTable.from_json(one) for one in event["untold"]]
        fatal = [ErroredTable.from_json(one) for one in event["fatal"]]
        call_back(self.on_table_errored, context, untold)
        if fatal:
            raise errored_while_streaming(fatal)
        told = [*event.get("told", ()), *(list(table.mark) for table in untold)]
        self._stream(context, event["rotate_at"], told)

    def _errored_in_this_run(self, context: Context, pipeline: Pipeline) -> list[ErroredTable]:
        """Returns the tables that became Errored after `prepare`, and so possibly after their own tasks had passed."""
        found = errored_tables(pipeline.states(), pipeline.since())
        if not found or not self.copiers:
            return []
        prepared = pipeline.completion_records.completions(run_of(context)).get(self.copiers[0].before[0], float("inf"))
        return [table for table in found if table.since > prepared]

    def _judge_at_the_end(self, context: Context, errored: list[ErroredTable], told: list[Any]) -> None:
        marks = {tuple(mark) for mark in told}
        call_back(self.on_table_errored, context, [table for table in errored if table.mark not in marks])
        fatal = [table for table in errored if table.was_ready]
        if fatal and self.tolerance.fail_on_error is not False:
            raise errored_while_streaming(fatal)

    # -- Ends. ---------------------------------------------------------------------------------------------------------

    def _begins_anew(self, event: dict[str, Any]) -> bool:
        """Returns whether the next run copies again because changes may be missing. Its `prepare` does so where runs
        follow each other and that is declared (`on_slot_lost`)."""
        gap = event["status"] == "failed" and event["kind"] in _GAPS
        return gap and self.until is None and self.replication.spec.source.on_slot_lost == "resync"

    def _say_who_is_left(self, tables: list[str]) -> None:
        """Handles tables that must be copied but that no task of this run will copy: the next run does. A run
        `until="caught_up"` fails, because it has not caught up."""
        said = f"{', '.join(tables)} must be copied, and no task of this run is left to do it."
        if self.until == "caught_up":
            raise AirflowFailException(
                f"{said} Where a `data_sync` has failed, its log says why. The next run copies them, or clear "
                "`data_sync` and `apply` now."
            )
        self.log.warning("%s The run ends, and the next one does it.", said)


# -- `merge`: merges what has landed beside the tables of a lake into them, by Spark. ----------------------------------


class MergeOperator(AnnouncingOperator):
    """Merges, once, all that has landed for a pipeline with ``merge = "spark"``; where nothing has, no Spark is
    started.

    A replication that runs `until="caught_up"` has this task after `apply`. For one that streams on, schedule it as
    often as readers need new data::

        with DAG("shop_merge", schedule="*/30 * * * *", max_active_runs=1, catchup=False):
            MergeOperator(task_id="merge", replication=shop.replication)

    Overlapping merges do no harm, but one of them does work that is discarded.

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
