"""`init`: the table stands at the beginning, or wherever it has come to since. Clearing it begins anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_pgetl.engine.phases import phase_name
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.operators.base import PipelineOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class InitOperator(PipelineOperator):
    """Checks that the table is registered. Cleared, it resets the table and forgets its stored schemas."""

    def __init__(self, *, table: TableName, before: tuple[str, ...], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.table = table
        self.before = before

    def execute(self, context: Context) -> None:
        with self.pipeline() as pipeline:
            if self.cleared(context, pipeline, self.before):
                pipeline.reset(self.table)
                pipeline.store.clear_copy_state(self.table)
                self.log.info("%s was cleared: it is back in Init and will be copied again.", self.table)
            self.log.info("%s is in %s.", self.table, phase_name(pipeline.state(self.table).phase))
            self.complete(context, pipeline)
