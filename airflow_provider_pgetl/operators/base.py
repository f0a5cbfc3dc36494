"""What every replication task has in common: the pipeline, opened for as long as a task runs, and the run's book.

The book is kept in the pipeline's own store: which task of which run completed when. By it a task knows whether it is
retried or was cleared (`clearing`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from airflow_provider_pgetl.book import Page, run_of, task_of
from airflow_provider_pgetl.connections import ConnectionIds, environment
from airflow_provider_pgetl.declarations import Replication
from airflow_provider_pgetl.engine.declaring import kind_of, refuse
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.failing import failure
from airflow_provider_pgetl.links import ReplicaLink, SourceLink, StateLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

    from airflow_provider_pgetl.engine.pipeline import Pipeline
    from airflow_provider_pgetl.engine.reports import Observer


class PipelineOperator(BaseOperator):
    """A task of one pipeline. The engine is imported when the task runs, not when the DAG is parsed.

    Which connections are meant may be a template, for a DAG that is deployed in several places. What is replicated may
    not: tables are tasks, and a pipeline's id names what it leaves on servers.
    """

    template_fields: Sequence[str] = ("connections", "spark_conn_id")
    template_fields_renderers: ClassVar[dict[str, str]] = {"connections": "json"}
    ui_color = "#e7f0ec"

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

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        """The pipeline with its connections looked up; the engine's errors come out as Airflow's."""
        from airflow_provider_pgetl.engine.pipeline import Pipeline

        try:
            pipeline = Pipeline(self.replication.spec, self.observer(), self.environment())
            with closing(pipeline):
                yield pipeline
        except PgetlError as error:
            raise failure(error) from error

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
    """

    def __init__(self, *, table: TableName, before: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.operator_extra_links = (SourceLink(), ReplicaLink(), StateLink())
        self.table = table
        self.before = tuple(before)

    def open_page(self, context: Context, pipeline: Pipeline) -> Page:
        """Reads this task's page, then notes that it begins."""
        page = Page.open(pipeline.store, context, self.before)
        page.begin()
        return page
