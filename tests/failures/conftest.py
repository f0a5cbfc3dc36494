"""What every test of a failure begins with: a pipeline of two tables that works."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases, Server
from tests.failures.pipeline import PipelineUnderTest

_numbers = itertools.count(1)


@pytest.fixture
def source_server(request: pytest.FixtureRequest) -> Server:
    """What is told here is told by the engine; the versions of PostgreSQL are looked at elsewhere. Where they differ in
    what is told, a test names them."""
    server: Server = request.getfixturevalue("postgres_servers")[getattr(request, "param", 16)]
    return server


@pytest.fixture
def state_database(server16: Server) -> Iterator[Database]:
    database = server16.create_database(f"state_{os.getpid()}_{next(_numbers)}")
    yield database
    server16.drop_database(database.name)


@pytest.fixture
def shop(databases: Databases, state_database: Database, tmp_path: Path) -> Iterator[PipelineUnderTest]:
    """Declared and filled; nothing has run yet."""
    pipeline = PipelineUnderTest(databases, state_database, tmp_path)
    pipeline.fill()
    yield pipeline
    pipeline.close()


@pytest.fixture
def followed(shop: PipelineUnderTest) -> PipelineUnderTest:
    """Copied and caught up with, once; nothing runs."""
    shop.catch_up().assert_well()
    return shop


@pytest.fixture
def own_server() -> Iterator[Server]:
    """To be stopped and set up otherwise."""
    with Server.start(16) as server:
        yield server
