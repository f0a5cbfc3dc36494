"""A state database by an Airflow connection."""

import time
from collections.abc import Iterator

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.conftest import PostgresServers


@pytest.fixture
def state(postgres_servers: PostgresServers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    server = postgres_servers[16]
    database = server.create_database(f"waiting_{time.monotonic_ns()}")
    monkeypatch.setenv("AIRFLOW_CONN_STATE", database.uri)
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    yield database
    server.drop_database(database.name)
