"""Where a writer's batches go: straight into the tables, or to their landings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airflow_provider_pgetl.engine.destinations.delta.key_index import KeyIndexes
from airflow_provider_pgetl.engine.destinations.delta.landing import Landing, LandingSet
from airflow_provider_pgetl.engine.destinations.delta.log import Standing, TableLog
from airflow_provider_pgetl.engine.destinations.delta.merge_on_read import MarkingSet
from airflow_provider_pgetl.engine.destinations.delta.shape import Shape
from airflow_provider_pgetl.engine.destinations.delta.working_set import WorkingSet
from airflow_provider_pgetl.engine.tables import TableName


@dataclass(frozen=True, slots=True)
class TableDesk:
    """Into the tables. `indexes`: where rows are marked as deleted instead of files being rewritten."""

    log: Callable[[TableName], TableLog]
    indexes: KeyIndexes | None = None

    def table(self, name: TableName) -> TableLog:
        return self.log(name)

    def begin(self, shape: Shape, _: Standing) -> WorkingSet:
        table = self.log(shape.table)
        layout = shape.layout_in(table)
        if shape.history:
            return WorkingSet(table.place, layout, [])
        files = table.files()
        if self.indexes is None:
            return WorkingSet(table.place, layout, files)
        self.indexes.retain(table.place.uri, [one.location for one in files])
        return MarkingSet(table.place, layout, files, self.indexes)


@dataclass(frozen=True, slots=True)
class LandingDesk:
    """Beside the tables."""

    log: Callable[[TableName], Landing]

    def table(self, name: TableName) -> TableLog:
        return self.log(name).table

    def begin(self, shape: Shape, standing: Standing) -> LandingSet:
        return LandingSet(self.log(shape.table), shape, standing)
