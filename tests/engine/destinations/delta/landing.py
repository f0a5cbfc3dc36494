"""A destination whose changes land, merged at once: readers see what a merge would show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from airflow_provider_pgetl.engine.changes.batch import EventBatch
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.protocol import Merged
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName

Item = TypeVar("Item")
Answer = TypeVar("Answer")
LANDS = {"merge": "spark"}


def in_threads(function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer | PgetlError]:
    def answer(item: Item) -> Answer | PgetlError:
        try:
            return function(item)
        except PgetlError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(answer, items))


def merge_all(destination: DeltaDestination, pipeline: str = "shop") -> dict[TableName, Merged]:
    tables = destination.positions(pipeline)
    return {table: destination.merge(pipeline, table, in_threads, lambda: False) for table in tables}


class MergedAtOnce(DeltaDestination):
    """Merges behind each batch."""

    def __init__(self, uri: str, pipeline: str, options: Any = None) -> None:
        super().__init__(uri, pipeline, {**(options or {}), **LANDS})

    def write_events(self, batch: EventBatch) -> None:
        super().write_events(batch)
        for table in batch.moves:
            self.merge(batch.pipeline, table, in_threads, lambda: False)
