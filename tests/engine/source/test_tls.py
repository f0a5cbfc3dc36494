"""TLS as the URI asks for it, for both kinds of session and under load."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.engine.source.connecting import connect, connect_replication
from airflow_provider_pgetl.engine.source.range_reading import copy_blocks
from airflow_provider_pgetl.engine.source.slots import create_slot
from airflow_provider_pgetl.testing.servers.installations import Account, installations
from airflow_provider_pgetl.testing.servers.postgres_servers import Server
from tests.folders import reachable
from tests.raising import raises

pytestmark = [
    pytest.mark.servers,
    # The wheel's servers are built without TLS.
    pytest.mark.skipif(15 not in installations(), reason="no PostgreSQL 15 on this machine"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    folder = reachable(tmp_path_factory.mktemp("tls"))
    certificate, key = folder / "server.crt", folder / "server.key"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    account = Account.for_servers()
    for path in (certificate, key):
        account.own(path, 0o600)
    with Server.start(15, {"ssl": True, "ssl_cert_file": str(certificate), "ssl_key_file": str(key)}) as server:
        certificate.chmod(0o644)
        yield server, certificate


def test_both_kinds_of_session_verify_the_server(server: tuple[Server, Path]) -> None:
    uri = f"{server[0].uri()}?sslmode=verify-full&sslrootcert={server[1]}"
    replication = connect_replication(uri, "pgetl test")
    assert replication.ssl_in_use
    with connect(uri, "pgetl test") as connection:
        assert connection.pgconn.ssl_in_use
        assert create_slot(replication, connection, "over_tls", export_snapshot=True).snapshot
    replication.finish()


def test_a_certificate_that_nobody_vouches_for_is_refused(server: tuple[Server, Path], tmp_path: Path) -> None:
    other = tmp_path / "other.crt"
    other.write_bytes(server[1].read_bytes()[:100])
    uri = f"{server[0].uri()}?sslmode=verify-full&sslrootcert={other}"
    with raises(ErrorKind.AUTHENTICATION, match="certificate"):
        connect(uri, "pgetl test")


def test_a_copy_flows_through_it_whole_and_can_be_broken_off(server: tuple[Server, Path]) -> None:
    with connect(f"{server[0].uri()}?sslmode=require", "pgetl test") as connection:
        query = "copy (select repeat('x', i % 40000) from generate_series(1, 3000) i) to stdout"
        read = sum(len(piece) for piece in copy_blocks(connection, query))
        assert read == sum(i + 1 for i in range(1, 3001))
        blocks = copy_blocks(connection, "copy (select generate_series(1, 100000000)) to stdout")
        next(blocks)
        blocks.close()
        assert connection.execute("select 1").fetchone() == (1,)
