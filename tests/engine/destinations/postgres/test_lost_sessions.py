"""A session is lost between batches or within one: nothing is blamed on a table, and the next attempt is whole."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import psycopg
import pytest

from airflow_provider_pgetl.engine.destinations.postgres import PostgresDestination
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.testing.builders import Replica
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server
from tests.engine.destinations.sources import Row, Source, schema_of

_OURS = "application_name = 'pgetl shop apply'"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """To be stopped and killed."""
    with Server.start(16) as started:
        yield started


@pytest.fixture
def database(server: Server) -> Iterator[Database]:
    yield server.create_database("d")
    server.drop_database("d")


def terminated(database: Database) -> None:
    database.execute(f"select pg_terminate_backend(pid, 5000) from pg_stat_activity where {_OURS}")


def out_of_memory(database: Database) -> None:
    """The kernel kills one backend; the server ends all sessions and recovers."""
    with database.connect() as other:
        ((pid,),) = other.execute(f"select pid from pg_stat_activity where {_OURS}".encode()).fetchall()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(psycopg.Error):  # this session is ended as well
            other.execute("select pg_sleep(30)")
    while not database.server.running or not _answers(database):
        time.sleep(0.05)


def _answers(database: Database) -> bool:
    try:
        return bool(database.execute("select 1"))
    except psycopg.OperationalError:
        return False


def restarted(database: Database) -> None:
    database.server.stop("fast")
    database.server.resume()


def crashed(database: Database) -> None:
    database.server.stop("immediate")
    database.server.resume()


WAYS = (terminated, out_of_memory, restarted, crashed)


def held(database: Database) -> Counter[Row]:
    return Counter(database.execute('select k, "K two", number, small, big from public.t'))


def persistently(write: Callable[[], None]) -> None:
    """As the engine does; each failure must be one that passes, and blames no table."""
    for _ in range(1000):
        try:
            write()
            return
        except PgetlError as error:
            failure = error
        assert (failure.kind, failure.table) == (ErrorKind.CONNECTION, None), failure
        assert "\n" not in failure.message
        time.sleep(0.01)
    raise AssertionError("it never succeeded")


@pytest.mark.parametrize("lost", WAYS, ids=lambda way: way.__name__)
def test_between_batches_large_and_small(database: Database, lost: Callable[[Database], None]) -> None:
    """What is prepared and what is temporary is gone with the session."""
    source = Source(schema_of(("k",)), random.Random(1), b"b", keys=300)
    destination = PostgresDestination(database.uri, "shop", "apply")
    replica = Replica(destination, source.schema, pipeline="shop").create()
    for size in (300, 3, 3, 300):
        steps = source.live(size, cuts=0.01)
        persistently(lambda steps=steps: replica.apply(*steps))  # type: ignore[misc]  # bound now
        assert held(database) == source.held
        lost(database)
    destination.shutdown()


@pytest.mark.parametrize("lost", [terminated, crashed], ids=lambda way: way.__name__)
def test_within_batches(database: Database, lost: Callable[[Database], None]) -> None:
    """At whatever statement it happens, and whether the answer to the commit was lost or the commit itself."""
    source = Source(schema_of(("k",)), random.Random(2), b"b", keys=300)
    destination = PostgresDestination(database.uri, "shop", "apply")
    replica = Replica(destination, source.schema, pipeline="shop").create()

    def lose_again_and_again() -> None:
        choose = random.Random(3)
        for _ in range(6):
            time.sleep(choose.uniform(0.02, 0.2))
            lost(database)

    trouble = threading.Thread(target=lose_again_and_again)
    trouble.start()
    while trouble.is_alive():
        for size in (200, 20):
            steps = source.live(size, cuts=0.02)
            persistently(lambda steps=steps: replica.apply(*steps))  # type: ignore[misc]  # bound now
    assert held(database) == source.held
    destination.shutdown()
