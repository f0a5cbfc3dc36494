"""The test servers themselves: what the other tests take for granted about them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import psycopg
import pytest

from airflow_provider_pgetl.testing.servers import postgres_servers as module
from airflow_provider_pgetl.testing.servers.installations import ServerError, descendants, installations, lives
from airflow_provider_pgetl.testing.servers.postgres_servers import Server
from tests.conftest import PostgresServers

pytestmark = pytest.mark.servers

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has another account to run servers under")


@pytest.mark.parametrize("major", [15, 16, 18])
def test_each_major_answers_over_tcp_with_password(postgres_servers: PostgresServers, major: int) -> None:
    with psycopg.connect(postgres_servers[major].uri()) as connection:
        (version,) = connection.execute("select version()").fetchone()
    assert version.startswith(f"PostgreSQL {major}.")


def test_tcp_asks_for_the_password(server18: Server) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server18.uri(password="wrong"))


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


def test_what_keeps_a_server_from_starting_is_told() -> None:
    with pytest.raises(ServerError, match="no_such_setting"):
        Server.start(18, {"no_such_setting": 1})


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
