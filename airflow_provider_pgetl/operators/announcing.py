"""Tasks whose end is news for those who wait for replicas: the assets of tables are updated by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import AssetAlias

from airflow_provider_pgetl.assets import replica_asset
from airflow_provider_pgetl.engine.phases import Ready
from airflow_provider_pgetl.operators.base import PipelineOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.engine.pipeline import Pipeline


class AnnouncingOperator(PipelineOperator):
    """A task at whose end every table that is Ready has caught up, as its readers see it, if `announces`."""

    def __init__(self, *, announces: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.announces = announces
        self.alias = AssetAlias(f"pgetl {self.pipeline_id} caught up")
        if announces:
            self.outlets = [*self.outlets, self.alias]

    def announce(self, context: Context, pipeline: Pipeline) -> None:
        """By way of an alias: of an Errored table there is no news."""
        if not self.announces:
            return
        pipeline.store.load()
        records = pipeline.store.tables().values()
        ready = sorted(str(record.table) for record in records if isinstance(record.state.phase, Ready))
        for table in (None, *ready):
            asset = replica_asset(self.pipeline_id, table)
            context["outlet_events"][self.alias].add(asset, extra={"caught_up": True})
