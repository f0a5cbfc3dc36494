"""What all replication tasks share: the pipeline, which is open while a task runs, and the completion records of the
run.

A task waits for a server that is out of reach without occupying a worker slot, for as long as is declared.

The completion records are kept in the pipeline's own store: which task of which run completed when. By them a task
finds whether it is retried or was cleared (`completion_records`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import AssetAlias, BaseOperator

from airflow_provider_pgetl.assets import replica_asset
from airflow_provider_pgetl.completion_records import ApplyTask, CompletionRecord, run_of, task_of
from airflow_provider_pgetl.connections import ConnectionIds, environment
from airflow_provider_pgetl.declarations import Replication
from airflow_provider_pgetl.engine.config.validation import kind_of, refuse
from airflow_provider_pgetl.engine.model.errors import Backoff, ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.quantities import format_duration
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.failures import failure, not_begun, outlasted
from airflow_provider_pgetl.links import ReplicaLink, SourceLink, StateLink
from airflow_provider_pgetl.openlineage.tasks import Moves, TellsOpenLineage
from airflow_provider_pgetl.running_airflow import deployment

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from airflow_provider_pgetl.engine.model.reports import Observer
    from airflow_provider_pgetl.engine.pipeline import Pipeline


OUTAGES = (ErrorKind.CONNECTION, ErrorKind.STORE)
_BACKOFF = Backoff(5.0, 300.0)


class PipelineOperator(TellsOpenLineage, BaseOperator):
    """A task of one pipeline. The engine is imported when the task runs, not when the DAG is parsed.

    The ids of connections may be templates, for a DAG that is deployed in several places. Tables and the pipeline's id
    may not: tables are tasks, and the id names slots, publication and state.

    :param replication: what a `ReplicationDag` or a `ReplicationTaskGroup` has as `replication`.
    """

    template_fields: Sequence[str] = ("connections", "spark_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"connections": "json"}
    ui_color = "#e7f0ec"
    _outage: tuple[float, int] | None = None

    def __init__(self, *, replication: Replication, **kwargs: Any) -> None:
        _check_replication(replication)
        super().__init__(**kwargs)
        self.operator_extra_links: tuple[BaseOperatorLink, ...] = (StateLink(),)
        self.pipeline_id = replication.spec.id
        self.connections = replication.connections.as_json()
        self.spark_conn_id = replication.spark_conn_id
        self._declared = replication

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        """Adds `pipeline_id`, by which the replication page finds pipelines in serialised DAGs."""
        return frozenset({*super().get_serialized_fields(), "pipeline_id"})

    @property
    def replication(self) -> Replication:
        """The replication as declared, with templates resolved where the task runs."""
        connections = ConnectionIds.from_json(self.connections)
        return replace(self._declared, connections=connections, spark_conn_id=self.spark_conn_id)

    @property
    def owned(self) -> Replication:
        """The replication with the name of this deployment in its owner, as the engine gets it where the task runs."""
        return self.replication.at(deployment())

    @contextmanager
    def opened(self) -> Iterator[Pipeline]:
        """Opens the pipeline with its connections looked up. Raises the engine's errors."""
        from airflow_provider_pgetl.engine.pipeline import Pipeline

        with closing(Pipeline(self.owned.spec, self.observer(), self.environment())) as pipeline:
            yield pipeline

    @contextmanager
    def pipeline(self, call_again: str, **arguments: Any) -> Iterator[Pipeline]:
        """As `opened`, but converts the engine's errors to Airflow's.

        `call_again`: the method that is called again, from its beginning and with the same `arguments`, when a server
        that was out of reach can be reached again; until then the task is deferred.
        """
        try:
            with self.opened() as pipeline:
                yield pipeline
        except PgetlError as error:
            if error.kind in OUTAGES:
                self._wait_out(error, call_again, arguments)
            raise failure(error) from error

    def resume_after_outage(
        self,
        context: Context,
        event: dict[str, Any],
        call: str,
        since: float,
        waits: int,
        arguments: Mapping[str, Any],
    ) -> Any:
        """Calls the method `call` again with its `arguments`: the servers can be reached, or the outage has lasted too
        long, which `call` finds out.

        `since`: when the outage began, in seconds since the Unix epoch. `waits`: how many times the task has waited.
        """
        del event
        self._outage = (since, waits)
        return getattr(self, call)(context, **arguments)

    def _wait_out(self, error: PgetlError, call: str, arguments: Mapping[str, Any]) -> None:
        """Defers the task. Fails if the outage has lasted longer than is tolerated; that uses no retries, as each would
        wait as long again."""
        from airflow_provider_pgetl.triggers.pgetl import OutageTrigger

        since, waits = self._outage or (time.time(), 0)
        bound = self.replication.tolerance.outage_seconds
        until = None if bound is None else since + bound
        if until is not None and time.time() >= until:
            raise outlasted(error, time.time() - since) from error
        how_long = "" if bound is None else f", for {format_duration(bound)} at most"
        self.log.warning("%s The task waits until that has passed%s.", error.message, how_long)
        pause = _BACKOFF.after(waits + 1)
        trigger = OutageTrigger(self.pipeline_id, self.replication.connections.as_json(), pause, until)
        self.defer(
            trigger=trigger,
            method_name="resume_after_outage",
            kwargs={"call": call, "since": since, "waits": waits + 1, "arguments": dict(arguments)},
            timeout=None,
        )

    def observer(self) -> Observer:
        from airflow_provider_pgetl.reporting import Reporting

        return Reporting(self.replication.spec.id, self.log).observe

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, **environment(self.replication.connections)}

    def complete(self, context: Context, pipeline: Pipeline) -> None:
        """Records the completion of the task. It is the last thing that a task does."""
        pipeline.completion_records.record_completion(run_of(context), task_of(context))


def is_continuous(dag: Any) -> bool:
    """Returns whether another run follows at once when one has ended."""
    return dag.schedule == "@continuous" or type(dag.schedule).__name__ == "ContinuousTimetable"


def _check_replication(replication: object) -> None:
    """Raises unless it is a declaration; a DAG or a group that replicates is easily passed instead."""
    if not isinstance(replication, Replication):
        remedy = "Pass its `.replication`." if hasattr(replication, "replication") else None
        refuse("replication", f"it must be a declaration, not {kind_of(replication)}.", remedy=remedy)


class TableOperator(PipelineOperator):
    """A task of one table of the pipeline.

    :param table: the table, by its name in the source.
    :param before: the ids of the tasks of this pipeline and table that this one follows.
    :param apply: the id of the task that streams in the same run; empty where no task of the DAG does.
    """

    _unstreamed_since: float | None = None

    def __init__(self, *, table: TableName, before: Sequence[str] = (), apply: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.operator_extra_links = (SourceLink(), ReplicaLink(), StateLink())
        self.table = table
        self.before = tuple(before)
        self.apply = apply

    @property
    def judged_tables(self) -> Sequence[TableName]:
        return (self.table,)

    def open_completion_record(self, context: Context, pipeline: Pipeline) -> CompletionRecord:
        """Reads this task's completion record, then records that the task begins."""
        record = CompletionRecord.open(pipeline.completion_records, context, self.before)
        record.begin()
        return record

    def begin(self, context: Context, pipeline: Pipeline) -> CompletionRecord:
        """Does what a task does that may be the first of its table: it takes up a table that was added to the DAG while
        the run was under way, and resets the table if it was cleared."""
        record = self.open_completion_record(context, pipeline)
        if pipeline.take_up(self.table):
            self.log.info("%s is new in this run, which takes it up.", self.table)
        if record.is_cleared:
            self.expect_stream(context, pipeline)
            pipeline.reset(self.table)
            self.after_reset(pipeline)
            record.obey()
            self.log.info("%s was cleared: it is back in Init and will be copied again.", self.table)
        return record

    def after_reset(self, pipeline: Pipeline) -> None:
        """Called by `begin` after the reset of a table."""

    def expect_stream(self, context: Context, pipeline: Pipeline) -> None:
        """Checks that the table can come to Ready again. `execute` must call it before the table is rolled back or
        reset.

        It returns if a worker streams, or if the `apply` of this run or of another run of the DAG has not ended.
        Otherwise the task waits for a person to clear `apply` as well, and begins anew when that happens; if it does
        not, the task fails, and has changed nothing.
        """
        from airflow_provider_pgetl.completion_records import how_apply_ended
        from airflow_provider_pgetl.triggers.pgetl import StreamTrigger

        if not self.apply or pipeline.is_streamed:
            return
        ended = how_apply_ended(ApplyTask(run_of(context), self.apply))
        if ended is None:
            return
        since = self._unstreamed_since or time.time()
        until = since + self.replication.tolerance.grace_seconds
        reason = not_begun(self.table, self.apply, ended)
        if time.time() >= until:
            raise reason
        left = format_duration(until - time.time())
        self.log.warning("%s This task waits %s for that, and then fails.", reason, left)
        trigger = StreamTrigger(run_of(context), self.apply, until)
        self.defer(trigger=trigger, method_name="resume_with_stream", kwargs={"since": since}, timeout=None)

    def resume_with_stream(self, context: Context, event: dict[str, Any], since: float) -> Any:
        """Runs `execute` again: `apply` was cleared, or the time has passed, which `execute` finds out. `since`: when
        the wait began, in seconds since the Unix epoch."""
        del event
        self._unstreamed_since = since
        return self.execute(context)

    def waiting_for_stream(self, context: Context) -> dict[str, Any]:
        """Returns the arguments of a trigger that waits for something that only a stream brings about."""
        return {"run": run_of(context), "apply": self.apply, "grace": self.replication.tolerance.grace_seconds}


# -- Tasks whose end updates the assets of replicas. -------------------------------------------------------------------


class AnnouncingOperator(PipelineOperator):
    """A task at whose end, if `announces`, every table that is Ready has caught up, as its readers see it.

    :param announces: whether the task updates the assets of the tables.
    """

    def __init__(self, *, announces: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.announces = announces
        self.alias = AssetAlias(f"pgetl {self.pipeline_id} caught up")
        if announces:
            self.outlets = [*self.outlets, self.alias]

    @property
    def moves(self) -> Moves:
        """All tables: a stream, and a merge of what it has landed, bring changes of each."""
        return Moves(self.replication.tables)

    def announce(self, context: Context, pipeline: Pipeline) -> None:
        """Updates the assets of the pipeline and of the tables that have changed since they were last announced. The
        events are added through an alias, as no event may be sent for an Errored table."""
        if not self.announces:
            return
        changed_tables = pipeline.changed_tables(run_of(context))
        events = context["outlet_events"][self.alias]
        events.add(replica_asset(self.pipeline_id, None), extra={"caught_up": True})
        for table in sorted(changed_tables):
            extra: dict[str, Any] = {"caught_up": True, "schema_from": pipeline.columns_since(table)}
            events.add(replica_asset(self.pipeline_id, str(table)), extra=extra)
        pipeline.completion_records.record_announced(run_of(context), changed_tables)
