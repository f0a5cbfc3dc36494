"""What every replication task has in common: the pipeline, opened for as long as a task runs, and the run's book.

A server that is out of reach is waited for without occupying a worker slot, for as long as is declared.

The book is kept in the pipeline's own store: which task of which run completed when. By it a task knows whether it is
retried or was cleared (`clearing`).
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
from airflow_provider_pgetl.deployment import deployment
from airflow_provider_pgetl.engine.config.validation import kind_of, refuse
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.quantities import format_duration
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.failures import failure, not_begun, outlasted
from airflow_provider_pgetl.links import ReplicaLink, SourceLink, StateLink
from airflow_provider_pgetl.openlineage.tasks import Moves, TellsOpenLineage

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from airflow_provider_pgetl.engine.model.reports import Observer
    from airflow_provider_pgetl.engine.pipeline import Pipeline


OUTAGES = (ErrorKind.CONNECTION, ErrorKind.STORE)
_FIRST_PAUSE = 5.0
_LONGEST_PAUSE = 300.0


class PipelineOperator(TellsOpenLineage, BaseOperator):
    """A task of one pipeline. The engine is imported when the task runs, not when the DAG is parsed.

    Which connections are meant may be a template, for a DAG that is deployed in several places. What is replicated may
    not: tables are tasks, and a pipeline's id names what it leaves on servers.
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
        """The replication page finds pipelines in serialised DAGs."""
        return frozenset({*super().get_serialized_fields(), "pipeline_id"})

    @property
    def replication(self) -> Replication:
        """As declared, templates resolved where the task runs."""
        connections = ConnectionIds.from_json(self.connections)
        return replace(self._declared, connections=connections, spark_conn_id=self.spark_conn_id)

    @property
    def owned(self) -> Replication:
        """The same, in the name of this Airflow; for the engine, where the task runs."""
        return self.replication.at(deployment())

    @contextmanager
    def opened(self) -> Iterator[Pipeline]:
        """The pipeline with its connections looked up; errors are the engine's."""
        from airflow_provider_pgetl.engine.pipeline import Pipeline

        with closing(Pipeline(self.owned.spec, self.observer(), self.environment())) as pipeline:
            yield pipeline

    @contextmanager
    def pipeline(self, call_again: str | None = None) -> Iterator[Pipeline]:
        """The same; the engine's errors come out as Airflow's.

        `call_again`: the method (`execute`, or `resume`) that is called again, from its beginning, when a server that
        is out of reach is there again. Until then the task is deferred. None: it fails.
        """
        try:
            with self.opened() as pipeline:
                yield pipeline
        except PgetlError as error:
            if call_again is not None and error.kind in OUTAGES:
                self._wait_out(error, call_again)
            raise failure(error) from error

    def resume_after_outage(self, context: Context, event: dict[str, Any], call: str, since: float, waits: int) -> Any:
        """The servers can be reached, or that has lasted too long, which `call` will find. `since`: seconds since the
        Unix epoch; `waits`: how many times it has been waited."""
        del event
        self._outage = (since, waits)
        arguments: dict[str, Any] = {} if call == "execute" else {"event": {}}
        return getattr(self, call)(context, **arguments)

    def _wait_out(self, error: PgetlError, call: str) -> None:
        """Defers; for longer than is tolerated it fails, and no retry is spent, as each would wait as long."""
        from airflow_provider_pgetl.triggers.outage import OutageTrigger

        since, waits = self._outage or (time.time(), 0)
        bound = self.replication.tolerance.outage_seconds
        until = None if bound is None else since + bound
        if until is not None and time.time() >= until:
            raise outlasted(error, time.time() - since) from error
        how_long = "" if bound is None else f", for {format_duration(bound)} at most"
        self.log.warning("%s The task waits until that has passed%s.", error.message, how_long)
        pause = min(_FIRST_PAUSE * 2**waits, _LONGEST_PAUSE)
        trigger = OutageTrigger(self.pipeline_id, self.replication.connections.as_json(), pause, until)
        self.defer(
            trigger=trigger,
            method_name="resume_after_outage",
            kwargs={"call": call, "since": since, "waits": waits + 1},
            timeout=None,
        )

    def observer(self) -> Observer:
        from airflow_provider_pgetl.reporting import Reporting

        return Reporting(self.replication.spec.id, self.log).observe

    def environment(self) -> Mapping[str, str]:
        return {**os.environ, **environment(self.replication.connections)}

    def complete(self, context: Context, pipeline: Pipeline) -> None:
        """The last thing that a task does."""
        pipeline.store.record_completion(run_of(context), task_of(context))


def _check_replication(replication: object) -> None:
    """A DAG or group that replicates has its declaration, and is easily taken for it."""
    if not isinstance(replication, Replication):
        remedy = "Pass its `.replication`." if hasattr(replication, "replication") else None
        refuse("replication", f"it must be a declaration, not {kind_of(replication)}.", remedy=remedy)


class TableOperator(PipelineOperator):
    """A task of one table of the pipeline.

    :param table: the table, by its name in the source.
    :param before: the ids of the tasks of this pipeline and table that this one follows.
    :param apply: the id of the task that streams in the same run; empty where that is none of the DAG's business.
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
        """Reads this task's page, then notes that it begins."""
        page = CompletionRecord.open(pipeline.store, context, self.before)
        page.begin()
        return page

    def expect_stream(self, context: Context, pipeline: Pipeline) -> None:
        """To be asked by `execute` before the table is taken back: nobody would bring it to Ready again where nobody
        streams now, and the `apply` of this run, and of every other run of the DAG, has ended. Then the task waits for
        a person to clear `apply`, too, and begins anew; in the end it fails, and has done nothing."""
        from airflow_provider_pgetl.completion_records import how_apply_ended
        from airflow_provider_pgetl.triggers.stream import StreamTrigger

        if not self.apply or pipeline.store.lease() is not None:
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
        """`apply` was cleared, or the time is up, which `execute` finds. `since`: seconds since the Unix epoch."""
        del event
        self._unstreamed_since = since
        return self.execute(context)

    def waiting_for_stream(self, context: Context) -> dict[str, Any]:
        """What a trigger is given that waits for what only a stream does."""
        return {"run": run_of(context), "apply": self.apply, "grace": self.replication.tolerance.grace_seconds}


# -- Tasks whose end is news for those who wait for replicas: the assets of tables are updated by them. ----------------


class AnnouncingOperator(PipelineOperator):
    """A task at whose end every table that is Ready has caught up, as its readers see it, if `announces`."""

    def __init__(self, *, announces: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.announces = announces
        self.alias = AssetAlias(f"pgetl {self.pipeline_id} caught up")
        if announces:
            self.outlets = [*self.outlets, self.alias]

    @property
    def moves(self) -> Moves:
        """A stream, and a merge of what it has landed, bring changes of all tables."""
        return Moves(self.replication.tables)

    def announce(self, context: Context, pipeline: Pipeline) -> None:
        """Of tables that have changed since they were last announced: what is scheduled on one runs for its changes. By
        way of an alias: of an Errored table there is no news."""
        if not self.announces:
            return
        news = pipeline.news(run_of(context))
        for table in (None, *sorted(map(str, news))):
            asset = replica_asset(self.pipeline_id, table)
            context["outlet_events"][self.alias].add(asset, extra={"caught_up": True})
        pipeline.store.record_announced(run_of(context), news)
