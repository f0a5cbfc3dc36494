"""`prepare`: source, store and destination are brought together, or refused with the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import DownstreamTasksSkipped

from airflow_provider_pgetl.book import run_of
from airflow_provider_pgetl.engine.phases import Ready
from airflow_provider_pgetl.operators.base import PipelineOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.engine.pipeline import Pipeline


class PrepareOperator(PipelineOperator):
    """Preflight, migrations, publication, lineage, tables, slots. Changes nothing that is as it should be.

    :param skip_when_ready: the tables' tasks, which are passed over where every table is Ready already: a run over
        hundreds of such tables would cost Airflow minutes and do nothing. They count as completed in this run, so
        that clearing one of them does what it always does.
    """

    def __init__(self, *, skip_when_ready: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.skip_when_ready = list(skip_when_ready)

    def execute(self, context: Context) -> None:
        from airflow_provider_pgetl.spark_submission import spark_connection

        with self.pipeline() as pipeline:
            # Before there is anything that somebody would have to tidy.
            spark_connection(self.spark_conn_id)
            prepared = pipeline.prepare()
            self.log.info("%d tables are declared and fit to be replicated.", len(prepared.sizes))
            self.complete(context, pipeline)
            if self.skip_when_ready and self._all_ready(pipeline):
                self._complete_for_all(context, pipeline)
                self.log.info("All of them are Ready: their own tasks have nothing to do.")
                # Not by way of SkipMixin, which would skip a task again when a person clears it.
                raise DownstreamTasksSkipped(tasks=self.skip_when_ready)

    def _all_ready(self, pipeline: Pipeline) -> bool:
        pipeline.store.load()
        known = pipeline.store.tables()
        return all(table in known and isinstance(known[table].state.phase, Ready) for table in self.replication.tables)

    def _complete_for_all(self, context: Context, pipeline: Pipeline) -> None:
        for task in self.skip_when_ready:
            pipeline.store.record_completion(run_of(context), task)
