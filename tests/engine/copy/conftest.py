import itertools

import pytest

from airflow_provider_pgetl.engine.config.spec import DestinationSpec
from airflow_provider_pgetl.engine.destinations.memory import MemoryDestination, shared_storage
from airflow_provider_pgetl.engine.state.memory_store import MemoryStore
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.engine.copy.copies import DESTINATION, SOURCE, Copies

_numbers = itertools.count(1)


@pytest.fixture
def pipeline() -> str:
    """An id of its own, under which the destination in memory is found again."""
    return f"shop{next(_numbers)}"


@pytest.fixture
def memory(pipeline: str) -> MemoryDestination:
    """What the destination in memory holds."""
    return MemoryDestination(shared_storage(pipeline))


@pytest.fixture
def copies(databases: Databases, pipeline: str, monkeypatch: pytest.MonkeyPatch) -> Copies:
    """Into memory."""
    monkeypatch.setenv(SOURCE, databases.source.uri)
    monkeypatch.setenv(DESTINATION, databases.destination.uri)
    return Copies(pipeline, databases.source, DestinationSpec("memory"), MemoryStore(pipeline))
