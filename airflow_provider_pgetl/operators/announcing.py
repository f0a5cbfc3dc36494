"""Tasks whose end is news for those who wait for replicas: the assets of tables are updated by them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import AssetAlias

from airflow_provider_pgetl.assets import replica_asset
from airflow_provider_pgetl.book import run_of
from airflow_provider_pgetl.openlineage.tasks import Moves
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
