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


@pytest.fixture
def three(copies: Copies) -> Copies:
    """A table of several ranges, one of a single range, one without a row."""
    copies.source.execute("create table big (id int primary key, note text)")
    copies.source.execute("insert into big select g, repeat('x', 100) from generate_series(1, 5000) g")
    copies.source.execute("create table small (id int primary key)")
    copies.source.execute("insert into small values (1), (2)")
    copies.source.execute("create table empty (id int primary key)")
    copies.publish()
    return copies
