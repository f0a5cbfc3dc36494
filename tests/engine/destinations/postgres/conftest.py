import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases


@pytest.fixture
def database(databases: Databases) -> Database:
    """That of the destination."""
    return databases.destination
