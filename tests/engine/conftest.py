"""A state database of one test."""

import itertools
from collections.abc import Iterator

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.conftest import PostgresServers

_databases = itertools.count(1)


@pytest.fixture
def state_database(postgres_servers: PostgresServers) -> Iterator[Database]:
    """A fresh, empty database, for tests of what Postgres alone can do."""
    database = postgres_servers[16].create_database(f"state_{next(_databases)}")
    yield database
    database.server.drop_database(database.name)
