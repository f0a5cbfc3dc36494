"""What every replication task has in common: the pipeline, opened for as long as a task runs, and the run's book.

The book is kept in the pipeline's own store: which task of which run completed when. By it a task knows whether it was
cleared (`clearing`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_pgetl.clearing import was_cleared
from airflow_provider_pgetl.connections import environment
from airflow_provider_pgetl.declarations import Replication
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.failing import failure
from airflow_provider_pgetl.triggers.minutes import Minutes

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.engine.pipeline import Pipeline


class PipelineOperator(BaseOperator):
    """A task of one pipeline. The engine is imported when the task runs, not when the DAG is parsed."""

    def __init__(self, *, replication: Replication, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.replication = replication

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        """The pipeline with its connections looked up; the engine's errors come out as Airflow's."""
        from airflow_provider_pgetl.engine.pipeline import Pipeline

        given: Mapping[str, str] = {**os.environ, **environment(self.replication.connections)}
        pipeline = Pipeline(self.replication.spec, Minutes(self.log).observe, given)
        try:
            yield pipeline
        except PgetlError as error:
            raise failure(error) from error
        finally:
            pipeline.close()

    def cleared(self, context: Context, pipeline: Pipeline, before: Sequence[str] = ()) -> bool:
        """Whether a person cleared this task, rather than one before it."""
        return was_cleared(self.task_id, before, pipeline.store.completions(self._run(context)))

    def complete(self, context: Context, pipeline: Pipeline) -> None:
        """The last thing that a task does."""
        pipeline.store.record_completion(self._run(context), self.task_id)

    def _run(self, context: Context) -> str:
        return f"{self.dag_id}/{context['run_id']}"
