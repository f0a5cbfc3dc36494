"""Every test that asks for `world` runs against each implementation of the store."""

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator

import pytest

from airflow_provider_pgetl.engine.state.memory_store import MemoryDatabase, MemoryStore
from airflow_provider_pgetl.engine.state.store import Store, open_store
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.conftest import PostgresServers

_pipelines = itertools.count(1)


class World(ABC):
    """A state database, and the store objects that a test opens on it."""

    def __init__(self) -> None:
        self.pipeline_id = f"shop_{next(_pipelines)}"
        self._opened: list[Store] = []

    def open(self, pipeline_id: str | None = None) -> Store:
        """A store object as another process would have it; of the test's pipeline unless another is named."""
        self._opened.append(self._open(pipeline_id or self.pipeline_id))
        return self._opened[-1]

    def close(self) -> None:
        for store in self._opened:
            store.close()

    @abstractmethod
    def _open(self, pipeline_id: str) -> Store: ...

    @abstractmethod
    def pass_time(self, seconds: float) -> None: ...


class MemoryWorld(World):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.database = MemoryDatabase(clock=lambda: self.now)

    def _open(self, pipeline_id: str) -> Store:
        return MemoryStore(pipeline_id, self.database)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds


class PostgresWorld(World):
    def __init__(self, database: Database) -> None:
        super().__init__()
        self.database = database

    def _open(self, pipeline_id: str) -> Store:
        return open_store(self.database.uri, pipeline_id)

    def pass_time(self, seconds: float) -> None:
        time.sleep(seconds)


@pytest.fixture(scope="session")
def state_databases(postgres_servers: PostgresServers) -> Iterator[dict[int, Database]]:
    """One a version for the whole session: pipelines share a state database, and so do tests."""
    found: dict[int, Database] = {}
    for major in (16, 18):
        found[major] = postgres_servers[major].create_database("pgetl_state")
    yield found
    for database in found.values():
        database.server.drop_database(database.name)


@pytest.fixture(
    params=[
        "memory",
        pytest.param(16, marks=pytest.mark.servers, id="pg16"),
        pytest.param(18, marks=pytest.mark.servers, id="pg18"),
    ]
)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    if request.param == "memory":
        world: World = MemoryWorld()
    else:
        world = PostgresWorld(request.getfixturevalue("state_databases")[request.param])
    yield world
    world.close()


@pytest.fixture
def store(world: World) -> Store:
    return world.open()
