"""Sessions with a server whose password is a token of a few seconds, as RDS has them for fifteen minutes."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from airflow_provider_pgetl.engine.config.spec import DestinationSpec
from airflow_provider_pgetl.engine.config.tokens import Address
from airflow_provider_pgetl.engine.copy.ranges import Endpoints, RangeTask
from airflow_provider_pgetl.engine.copy.runners import LocalRunner, Outcomes, Wanted
from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.source.connecting import connect, connect_replication
from airflow_provider_pgetl.engine.state.memory_store import MemoryStore
from airflow_provider_pgetl.engine.state.state_database import StateDatabase
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases, Server
from tests.engine.copy.copies import DESTINATION, SOURCE, Copies, public
from tests.iam_gate import KEY, SECRET, IamGate

VALID = 2.0

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("source_server", [16], indirect=True, ids=["pg16"])]


@pytest.fixture
def gate(source_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IamGate]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with IamGate(source_server, tmp_path, VALID) as gate:
        yield gate


def until_it_has_expired() -> None:
    time.sleep(VALID + 1.1)


def test_every_session_has_a_token_of_its_own_and_an_old_one_is_refused(
    gate: IamGate, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = gate.uri(databases.source.name)
    stale = Address.read(uri).parameters()["password"]
    place, destination = StateDatabase.parse(uri), Session(uri, "pgetl test")
    pool = place.pool("pgetl test")

    def open_all() -> None:
        with connect(uri, "a session") as session, place.connect("another") as other:
            assert session.pgconn.ssl_in_use
            assert other.pgconn.ssl_in_use
        connect_replication(uri, "a stream").finish()
        with pool.connect() as pooled:
            pooled.exec_driver_sql("select 1")
        pool.dispose()
        assert destination.rows("select 1") == [(1,)]
        destination.close()
        asyncio.run(_opened(place))

    open_all()
    until_it_has_expired()
    open_all()
    assert gate.said == ["accepted"] * 12

    monkeypatch.setenv("PGPASSWORD", stale)
    with pytest.raises(PgetlError, match="PAM authentication failed") as caught:
        connect(uri.partition("?")[0] + "?sslmode=require", "a session")
    assert gate.said[12:] == ["it has expired"]
    assert caught.value.kind is ErrorKind.AUTHENTICATION
    assert "rds.iam_auth_for_replication" in caught.value.remedy
    assert "X-Amz" not in str(caught.value)


async def _opened(place: StateDatabase) -> None:
    await (await place.connect_async("waits")).close()


def test_a_server_that_speaks_no_tls_gets_no_token(gate: IamGate, databases: Databases) -> None:
    port = databases.source.server.port
    with pytest.raises(PgetlError, match="does not support SSL"):
        connect(f"postgresql://postgres@127.0.0.1:{port}/shop?token=aws-iam&aws_region=x", "a session")


class _Slow(LocalRunner):
    """As long a copy as there is: between its ranges every token ends."""

    def run(self, endpoints: Endpoints, tasks: Sequence[RangeTask], wanted: Wanted) -> Outcomes:
        half = len(tasks) // 2
        yield from super().run(endpoints, tasks[:half], wanted)
        until_it_has_expired()
        yield from super().run(endpoints.resolved(), tasks[half:], wanted)


@pytest.mark.slow
def test_a_copy_whose_ranges_begin_after_its_first_token_has_ended_is_whole(
    gate: IamGate, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    databases.source.execute("create table a (id int primary key, note text)")
    databases.source.execute("insert into a select g, repeat('x', 200) from generate_series(1, 3000) g")
    monkeypatch.setenv(SOURCE, gate.uri(databases.source.name))
    monkeypatch.setenv(DESTINATION, gate.uri(databases.destination.name))
    destination = DestinationSpec("postgres", uri=f"env:{DESTINATION}")
    copies = Copies("shop", databases.source, destination, MemoryStore("shop"))
    copies.publish()
    copies.register(public("a"))
    result = copies.copy_as({public("a"): public("a")}, _Slow(2))
    assert result.failure is None
    assert copies.phases()[public("a")] == "FinishedCopy"
    assert databases.destination.execute("select count(*), sum(id) from a") == [(3000, 3000 * 3001 // 2)]
    assert set(gate.said) == {"accepted"}
