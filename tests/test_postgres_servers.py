"""The test servers themselves: what the other tests take for granted about them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from airflow_provider_pgetl.testing.servers import postgres_servers as module
from airflow_provider_pgetl.testing.servers.installations import ServerError, descendants, installations, lives
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases, Server
from tests.conftest import PostgresServers

pytestmark = pytest.mark.servers

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has another account to run servers under")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server.start(18) as server:
        yield server


def test_the_wheel_brings_both_majors() -> None:
    assert {16, 18} <= set(installations())


@pytest.mark.parametrize("major", [15, 16, 18])
def test_each_major_answers_over_tcp_with_password(postgres_servers: PostgresServers, major: int) -> None:
    with psycopg.connect(postgres_servers[major].uri()) as connection:
        (version,) = connection.execute("select version()").fetchone()
    assert version.startswith(f"PostgreSQL {major}.")


def test_tcp_asks_for_the_password(server18: Server) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server18.uri(password="wrong"))


def test_the_socket_asks_for_none(server18: Server) -> None:
    with psycopg.connect(server18.socket_uri()) as connection:
        assert connection.info.status is psycopg.pq.ConnStatus.OK


@pytest.mark.parametrize("source_server", [15, 16, 18], indirect=True)
def test_a_logical_slot_with_pgoutput_can_be_created(databases: Databases) -> None:
    source = databases.source
    source.execute("select pg_create_logical_replication_slot('proof', 'pgoutput')")
    assert source.execute("select plugin, database from pg_replication_slots where slot_name = 'proof'") == [
        ("pgoutput", source.name)
    ]
    source.execute("select pg_drop_replication_slot('proof')")


def test_a_database_is_dropped_with_the_slot_in_use_and_the_connections(server18: Server) -> None:
    database = server18.create_database("dropped")
    database.execute("select pg_create_logical_replication_slot('held', 'pgoutput')")
    database.execute("create publication everything for all tables")
    stream = psycopg.pq.PGconn.connect(f"{database.uri}?replication=database".encode())
    options = b"(proto_version '1', publication_names 'everything')"
    started = stream.exec_(b"START_REPLICATION SLOT held LOGICAL 0/0 " + options)
    assert started.status == psycopg.pq.ExecStatus.COPY_BOTH

    server18.drop_database("dropped")

    with server18.connect() as connection:
        assert connection.execute("select 1 from pg_replication_slots where slot_name = 'held'").fetchone() is None
        assert connection.execute("select 1 from pg_database where datname = 'dropped'").fetchone() is None
    stream.finish()


def test_databases_are_fresh_and_apart(databases: Databases) -> None:
    databases.source.execute("create table only_here ()")
    assert databases.destination.execute("select to_regclass('only_here')") == [(None,)]


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate"])
def test_stop_ends_the_processes_and_resume_finds_the_data(server: Server, mode: module.StopMode) -> None:
    database = server.create_database("kept")
    database.execute("create table t as select 1 as x")
    server.stop(mode)
    assert not server.running
    with pytest.raises(psycopg.OperationalError):
        server.connect()
    server.resume()
    assert database.execute("select x from t") == [(1,)]


def test_kill_ends_every_process_at_once(server: Server) -> None:
    database = server.create_database("kept")
    database.execute("create table t as select 1 as x")
    with database.connect() as held:
        backend = psutil.Process(held.info.backend_pid)
        server.kill()
        assert not lives(backend)
        server.resume()
        assert database.execute("select x from t") == [(1,)]


def test_a_stop_that_takes_too_long_is_an_error(server: Server) -> None:
    with server.connect(), pytest.raises(ServerError, match="no smart stop"):
        server.stop("smart", timeout=0.2)


def test_settings_change_by_reload_and_by_restart(server: Server) -> None:
    server.configure({"wal_sender_timeout": "3s"})
    server.configure({"max_replication_slots": 7}, restart=True)
    with server.connect() as connection:
        show = "select current_setting('wal_sender_timeout'), current_setting('max_replication_slots')"
        assert connection.execute(show).fetchone() == ("3s", "7")


def test_settings_can_be_given_at_the_start() -> None:
    with Server.start(16, {"fsync": True, "wal_level": "replica"}) as server, server.connect() as connection:
        show = "select current_setting('fsync'), current_setting('wal_level')"
        assert connection.execute(show).fetchone() == ("on", "replica")


def test_what_keeps_a_server_from_starting_is_told() -> None:
    with pytest.raises(ServerError, match="no_such_setting"):
        Server.start(18, {"no_such_setting": 1})


def test_a_given_directory_outlives_its_server(server_directory: Path) -> None:
    with Server.start(18, directory=server_directory) as first:
        first.create_database("kept")
    with Server.start(18, directory=server_directory) as second:
        assert second.connect("kept").info.dbname == "kept"


@pytest.fixture
def server_directory(server: Server) -> Path:
    return server.home / "another"


def test_close_leaves_nothing_behind() -> None:
    with Server.start(18) as server:
        family = descendants(server._postmaster.pid)
    assert not server.home.exists()
    assert not server.running
    assert not any(lives(process) for process in family)


@needs_root
def test_programs_that_the_account_may_not_read_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = installations()[18].copied_to(tmp_path / "hidden")
    tmp_path.chmod(0o700)
    monkeypatch.setattr(module, "installation_of", lambda _: hidden)
    with Server.start(18) as server, server.connect() as connection:
        assert server.installation.prefix.is_relative_to(server.home)
        assert connection.execute("select 1").fetchone() == (1,)


def test_no_server_outlives_a_killed_test_run() -> None:
    script = (
        "import time; from airflow_provider_pgetl.testing.servers.postgres_servers import Server; s = Server.start(18);"
    )
    script += "print(s._postmaster.pid, s.home, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as run:
        pid, home = run.stdout.readline().split()
        postmaster = psutil.Process(int(pid))
        assert lives(postmaster)
        run.send_signal(signal.SIGKILL)
    give_up_at = time.monotonic() + 60
    while (lives(postmaster) or Path(home).exists()) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert not lives(postmaster)
    assert not Path(home).exists()
