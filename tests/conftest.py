"""Fixtures that every test may ask for: real PostgreSQL servers, and fresh databases on them.

A server starts when the first test asks for it and runs until the test session ends. A test that wants to
stop, kill or reconfigure a server starts one of its own with `Server.start` (about half a second).

    def test_something(databases): ...                       # runs on 16 and on 18

    @pytest.mark.parametrize("source_server", [18], indirect=True)
    def test_of_generated_columns(databases): ...            # on 18 alone

    @pytest.mark.parametrize("destination_server", [15], indirect=True)
    def test_across_versions(databases): ...                 # from 16 and 18 into 15
"""

import itertools
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from airflow_provider_pgetl.testing.servers.installations import installations
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases, Server
from tests.third_party.delta_spark import DeltaSpark

# A machine that is busy with something else makes no test fail.
settings.register_profile("unhurried", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

_SERVER_FIXTURES = frozenset({"postgres_servers"})
_SOURCE_MAJORS = (16, 18)
_numbers = itertools.count(1)


class PostgresServers:
    """The session's servers by major version; started on demand, a skip where there is no such version."""

    def __init__(self) -> None:
        self._running: dict[int, Server] = {}

    def __getitem__(self, major: int) -> Server:
        if major not in installations():
            pytest.skip(f"no PostgreSQL {major} on this machine")
        if major not in self._running:
            self._running[major] = Server.start(major)
        return self._running[major]

    def close(self) -> None:
        for server in self._running.values():
            server.close()


# Files that take a minute and more. Whole files are dealt to processes, so these come first: else the last one is
# waited for while the other processes have nothing left to do.
_LONGEST = (
    "simulation/test_it_bites.py",
    "simulation/test_simulation.py",
    "engine/verify/test_verifying.py",
    "provider/triggers/test_apply.py",
    "provider/test_outages.py",
    "chaos/test_servers_away.py",
    "failures/test_added_columns.py",
    "engine/destinations/delta/test_end_to_end.py",
    "failures/test_watched_source.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.path.as_posix().endswith(_LONGEST))
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if _SERVER_FIXTURES & fixtures:
            item.add_marker("servers")
        if "delta_spark" in fixtures:
            item.add_marker("spark")
            item.add_marker("slow")
            item.add_marker(pytest.mark.timeout(900))
        kind = next((kind for kind in ("airflow", "spark") if item.get_closest_marker(kind)), None)
        if kind is not None:
            item.add_marker(pytest.mark.xdist_group(kind))


@pytest.fixture(scope="session")
def delta_spark() -> Iterator[DeltaSpark]:
    """The real Delta-Spark (`tests.third_party`), installed when it is first asked for; such a test is slow."""
    with DeltaSpark.start() as spark:
        yield spark


@pytest.fixture(scope="session")
def postgres_servers() -> Iterator[PostgresServers]:
    servers = PostgresServers()
    yield servers
    servers.close()


@pytest.fixture(scope="session")
def server16(postgres_servers: PostgresServers) -> Server:
    return postgres_servers[16]


@pytest.fixture(scope="session")
def server18(postgres_servers: PostgresServers) -> Server:
    return postgres_servers[18]


@pytest.fixture(params=_SOURCE_MAJORS, ids=lambda major: f"pg{major}")
def source_server(request: pytest.FixtureRequest, postgres_servers: PostgresServers) -> Server:
    return postgres_servers[request.param]


@pytest.fixture
def destination_server(request: pytest.FixtureRequest, postgres_servers: PostgresServers) -> Server:
    """The source's server, unless a test names another version."""
    major = getattr(request, "param", None)
    if major is not None:
        return postgres_servers[major]
    server: Server = request.getfixturevalue("source_server")
    return server


@pytest.fixture
def databases(source_server: Server, destination_server: Server) -> Iterator[Databases]:
    """A fresh, empty pair of databases, dropped after the test with its slots and connections."""
    suffix = f"{os.getpid()}_{next(_numbers)}"
    pair = Databases(
        source_server.create_database(f"source_{suffix}"),
        destination_server.create_database(f"destination_{suffix}"),
    )
    yield pair
    for database in pair:
        database.server.drop_database(database.name)
