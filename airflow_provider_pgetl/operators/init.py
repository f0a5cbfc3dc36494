"""`init`: registers the table. Clearing it resets the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgetl.engine.model.phases import phase_name
from airflow_provider_pgetl.operators.base import TableOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.engine.pipeline import Pipeline


class InitOperator(TableOperator):
    """Checks that the table is registered, and registers a table that was added to the DAG while the run was under way.
    When it is cleared, it resets the table and deletes its stored schemas."""

    def execute(self, context: Context) -> None:
        with self.pipeline("execute") as pipeline:
            self.begin(context, pipeline)
            self.log.info("%s is in %s.", self.table, phase_name(pipeline.state(self.table).phase))
            self.complete(context, pipeline)

    def after_reset(self, pipeline: Pipeline) -> None:
        pipeline.store.clear_copy_state(self.table)
