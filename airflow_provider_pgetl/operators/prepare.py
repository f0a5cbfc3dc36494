"""`prepare`: source, store and destination are brought together, or refused with the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgetl.operators.base import PipelineOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class PrepareOperator(PipelineOperator):
    """Preflight, migrations, publication, lineage, tables, slots. Changes nothing that is as it should be."""

    def execute(self, context: Context) -> None:
        with self.pipeline() as pipeline:
            prepared = pipeline.prepare()
            self.log.info("%d tables are declared and fit to be replicated.", len(prepared.sizes))
            self.complete(context, pipeline)
