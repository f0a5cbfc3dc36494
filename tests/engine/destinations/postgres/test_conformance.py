"""PostgreSQL keeps the contract of every destination, with all abilities, on each version."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_pgetl.engine.destinations.postgres import PostgresDestination
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing import DestinationConformance
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases


@pytest.mark.parametrize("destination_server", [15, 16, 18], indirect=True)
@pytest.mark.parametrize("source_server", [18], indirect=True)
class TestPostgres(DestinationConformance):
    @pytest.fixture(autouse=True)
    def _place(self, databases: Databases) -> None:
        self.database: Database = databases.destination

    def open(self) -> PostgresDestination:
        return PostgresDestination(self.database.uri, "conformance", "test")

    def read(self, table: TableName) -> list[tuple[Any, ...]]:
        return self.database.execute(f"select id::text, name, note from {table.sql}")
