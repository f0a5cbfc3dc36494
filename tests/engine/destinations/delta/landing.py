"""A destination whose changes land, merged at once: readers see what a merge would show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from airflow_provider_pgetl.engine.changes.batch import EventBatch
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.protocol import Merged
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing.builders import Replica

Item = TypeVar("Item")
Answer = TypeVar("Answer")
LANDS = {"merge": "spark"}
Open = Callable[[], DeltaDestination]


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


def landed(folder: Path) -> list[str]:
    """The files of all landings."""
    return [path.name for path in (folder / "_pgetl").rglob("*.parquet") if path.parent.name.isdigit()]


def merge(destination: Any, replica: Replica, spread: Any = in_threads) -> Merged:
    done = destination.merge("shop", replica.schema.table, spread, lambda: False)
    assert isinstance(done, Merged)
    return done
