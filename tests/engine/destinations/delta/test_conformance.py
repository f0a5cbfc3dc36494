"""Delta Lake keeps the contract of every destination."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing import DestinationConformance
from tests.engine.destinations.delta.landing import MergedAtOnce
from tests.engine.destinations.delta.reading import rows_of


class TestDelta(DestinationConformance):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path) -> None:
        self.lake = tmp_path / "lake"

    def open(self) -> DeltaDestination:
        return DeltaDestination(str(self.lake), "conformance")

    def read(self, table: TableName) -> list[tuple[Any, ...]]:
        return rows_of(self.lake / table.schema / table.name)


class TestDeltaMergeOnRead(TestDelta):
    """Changed rows are marked as deleted where they are."""

    def open(self) -> DeltaDestination:
        return DeltaDestination(str(self.lake), "conformance", {"updates": "merge_on_read"})


class TestDeltaWithLanding(TestDelta):
    """Changes land beside the tables; the suite reads what a merge makes of them."""

    def open(self) -> DeltaDestination:
        return MergedAtOnce(str(self.lake), "conformance")
