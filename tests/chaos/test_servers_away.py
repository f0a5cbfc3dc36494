"""Servers that crash, restart, are away, or hold everything up, under a run that goes on."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Databases, Server
from tests.comparing import assert_equal
from tests.runs import Run, Runs
from tests.shop import SMALL_SHOP, create_small_shop, small_file
from tests.trade import Changes

pytestmark = pytest.mark.servers

_SENDER_TIMEOUT = 3


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    """Three servers of the test's own."""
    settings = {"wal_sender_timeout": f"{_SENDER_TIMEOUT}s"}
    with Server.start(16, settings) as source, Server.start(16) as destination, Server.start(16) as state:
        databases = Databases(source.create_database("source"), destination.create_database("destination"))
        create_small_shop(databases.source)
        runs = Runs(databases, tmp_path, small_file(), state=state.create_database("state"))
        yield runs
        runs.close()


def _arrive(runs: Runs) -> None:
    assert runs.until_caught_up() == 0, runs.log
    assert_equal(runs.databases, SMALL_SHOP)
    runs.assert_settled()


def _start_copying(runs: Runs) -> Run:
    """Group after group, so that there are copies and hand-overs for a while. What is away before a run has begun ends
    it: somebody may have mistyped an address."""
    runs.text = small_file(group="8KiB", workers=1)
    run = runs.start()
    run.until(lambda: _walsender(runs) is not None, "it streams")
    return run


def _start_following(runs: Runs) -> Run:
    assert runs.until_caught_up() == 0, runs.log
    run = runs.start()
    run.until(lambda: _walsender(runs) is not None, "it streams")
    return run


def _walsender(runs: Runs) -> int | None:
    """The process of the source that streams the apply slot; it is none while the slot is only being created."""
    statement = """select active_pid from pg_replication_slots join pg_stat_replication on pid = active_pid
                   where slot_name like 'pgetl_matrix%_apply' and state in ('catchup', 'streaming')"""
    rows = runs.databases.source.execute(statement)
    return rows[0][0] if rows else None


def _newest(runs: Runs) -> int:
    """How far the changes have come in the destination."""
    statement = "select coalesce(-min(id), 0)::int from public.orders where id < 0"
    return int(runs.databases.destination.execute(statement)[0][0])


@contextmanager
def _locked(runs: Runs) -> Iterator[None]:
    """Nothing can be written to a table of the destination."""
    with runs.databases.destination.connect(autocommit=False) as session:
        session.execute("lock table public.orders in access exclusive mode")
        yield


# -- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "which", ["source", *(pytest.param(which, marks=pytest.mark.slow) for which in ("destination", "state"))]
)
def test_a_server_crashes_again_and_again_from_the_copy_on(runs: Runs, which: str) -> None:
    servers = {
        "source": runs.databases.source.server,
        "destination": runs.databases.destination.server,
        "state": runs.state.server if runs.state else runs.databases.source.server,
    }
    run = _start_copying(runs)
    with Changes(runs.databases.source):
        for pause in (0.2, 2.0, 1.5, 3.0, 4.0):
            time.sleep(pause)
            servers[which].kill()
            time.sleep(0.3)
            servers[which].resume()
    assert run.running, run.said()
    run.terminate()
    assert run.wait(60) == 0, run.said()
    _arrive(runs)


# -- the store --------------------------------------------------------------------------------------------------------


def test_without_the_store_what_is_known_goes_on(runs: Runs) -> None:
    run = _start_following(runs)
    assert runs.state is not None
    with Changes(runs.databases.source) as changes:
        changes.wait_for(10)
        runs.state.server.stop("immediate")
        far = changes.transactions + 10  # and no more: soon the lease will have run out
        run.until(lambda: _newest(runs) > far, "it has come far")
        runs.state.server.resume()
        time.sleep(2)
    assert run.running, run.said()
    run.terminate()
    assert run.wait(60) == 0, run.said()
    _arrive(runs)


@pytest.mark.slow
def test_without_the_store_it_does_not_go_on_for_ever(runs: Runs) -> None:
    """Somebody else may have the lease by then."""
    run = _start_following(runs)
    assert runs.state is not None
    with Changes(runs.databases.source):
        runs.state.server.stop("immediate")
        assert run.wait(120) == 1, run.said()
        runs.state.server.resume()
    assert "as long as the lease lasts" in run.said()
    _arrive(runs)


# -- a destination that holds everything up ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [9, 20])
def test_a_long_write_does_not_cost_the_connection(runs: Runs, seconds: int) -> None:
    assert seconds > 2 * _SENDER_TIMEOUT
    run = _start_following(runs)
    walsender = _walsender(runs)
    with Changes(runs.databases.source) as changes:
        changes.wait_for(5)
        with _locked(runs):
            time.sleep(seconds)
        assert _walsender(runs) == walsender
        far = changes.transactions
        run.until(lambda: _newest(runs) >= far, "it has come far")
    assert _walsender(runs) == walsender
    run.terminate()
    assert run.wait(60) == 0, run.said()
    _arrive(runs)


def test_the_source_can_be_shut_down_meanwhile(runs: Runs) -> None:
    run = _start_following(runs)
    source = runs.databases.source.server
    with Changes(runs.databases.source) as changes:
        changes.wait_for(5)
    with _locked(runs):
        with Changes(runs.databases.source) as changes:
            changes.wait_for(10)
        source.stop("fast", timeout=45)
        source.resume()
    assert run.running, run.said()
    with Changes(runs.databases.source) as changes:
        changes.wait_for(5)
    run.terminate()
    assert run.wait(60) == 0, run.said()
    _arrive(runs)


def test_a_stop_is_quick_even_if_the_destination_hangs(runs: Runs) -> None:
    run = _start_following(runs)
    with _locked(runs):
        with Changes(runs.databases.source) as changes:
            changes.wait_for(10)
        began = time.monotonic()
        run.terminate()
        assert run.wait(60) == 0, run.said()
        assert time.monotonic() - began < 45
    _arrive(runs)


@pytest.mark.slow
def test_somebody_ends_all_sessions_now_and_then(runs: Runs) -> None:
    """As administrators and poolers do, on every server."""
    run = _start_copying(runs)
    with Changes(runs.databases.source):
        for _ in range(12):
            time.sleep(0.7)
            for database in (*runs.databases, runs.state):
                assert database is not None
                _end_sessions(database.uri)
    assert run.running, run.said()
    run.terminate()
    assert run.wait(60) == 0, run.said()
    _arrive(runs)


def _end_sessions(uri: str) -> None:
    statement = """select pg_terminate_backend(pid) from pg_stat_activity
                   where pid <> pg_backend_pid() and application_name like 'pgetl%'"""
    with psycopg.connect(uri, autocommit=True) as session:
        session.execute(statement)
