"""The lake in an object store that speaks S3: copies, changes, fences, and secrets that come by reference."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta.options import resolved
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing import DestinationConformance
from airflow_provider_pgetl.testing.builders import Replica
from tests.engine.destinations.delta.reading import ANN, BOB
from tests.object_store import emptied, object_store, s3_client, unconditional
from tests.raising import raises

SECRET = "not so secret"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with object_store(SECRET) as address:
        yield address


@pytest.fixture
def storage(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of a bucket in which there is nothing."""
    emptied(endpoint, SECRET)
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "env:LAKE_SECRET",
    }


def opened(storage: dict[str, str]) -> DeltaDestination:
    return DeltaDestination("s3://lake/tables", "shop", resolved({"storage": storage}))


def rows(storage: dict[str, str], table: TableName) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in pa.table(loaded(storage, table).scan()).to_pylist()]


def loaded(storage: dict[str, str], table: TableName) -> DeltaTable:
    options = {**storage, "AWS_SECRET_ACCESS_KEY": SECRET}
    return DeltaTable(f"s3://lake/tables/{table.schema}/{table.name}", storage_options=options)


class TestDeltaInAnObjectStore(DestinationConformance):
    @pytest.fixture(autouse=True)
    def _place(self, storage: dict[str, str]) -> None:
        self.storage = storage

    def open(self) -> DeltaDestination:
        return opened(self.storage)

    def read(self, table: TableName) -> list[tuple[Any, ...]]:
        return rows(self.storage, table)


def test_a_store_that_would_lose_commits_is_found(storage: dict[str, str], endpoint: str) -> None:
    """One that writes an object twice, whatever the condition."""
    with unconditional(endpoint) as address:
        (finding,) = opened({**storage, "AWS_ENDPOINT_URL": address}).inspect()
    assert (finding.severity, finding.kind) == ("error", ErrorKind.CONFIG)
    assert "lets a version of a table be written twice" in finding.problem
    assert opened(storage).inspect() == []
    listed = s3_client(endpoint, SECRET).list_objects_v2(Bucket="lake", Prefix="tables/_pgetl/probe")
    assert listed["KeyCount"] == 0


def test_of_two_who_commit_at_once_one_does(storage: dict[str, str]) -> None:
    """No lock table is needed: the store itself refuses to write a version twice."""
    replica = Replica(opened(storage), pipeline="shop").create(ANN)
    others = [opened(storage) for _ in range(4)]
    barrier = threading.Barrier(4)

    def write(number: int) -> bool:
        batch = replica.batch(replica.wire().insert((b"%d" % (10 + number), None, None)).take(), to=20 + number)
        barrier.wait(60)
        try:
            others[number].write_events(batch)
        except Fenced:
            return False
        return True

    with ThreadPoolExecutor() as pool:
        won = list(pool.map(write, range(4)))
    assert sum(won) == 1
    assert Counter(row[0] for row in rows(storage, replica.schema.table)) == {1: 1, 10 + won.index(True): 1}


# Forwards everything. When the store has written one object, lets a program run, and only then answers: 503.
_DEAF = """
import http.client, http.server, subprocess, sys
class Deaf(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def forward(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        store = http.client.HTTPConnection(sys.argv[1])
        store.request(self.command, self.path, body, dict(self.headers))
        answer = store.getresponse()
        data, status = answer.read(), answer.status
        if self.command == "PUT" and self.path.endswith(sys.argv[2]):
            print(status, flush=True)
            if status == 200:
                subprocess.run([sys.executable, "-c", *sys.argv[3:]], check=True)
                status = 503
        self.send_response_only(status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("content-length") if self.command == "HEAD" else str(len(data))
        self.send_header("content-length", length or "0")
        self.end_headers()
        self.wfile.write(data)
    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Deaf)
print(server.server_port, flush=True)
server.serve_forever()
"""


_SUCCEED = """
import json, sys
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
DeltaDestination("s3://lake/tables", "shop", {"storage": json.loads(sys.argv[1])}).claim("shop", 2)
"""


@contextmanager
def deaf_to_the_next_commit(storage: dict[str, str], table: TableName, endpoint: str, *program: str) -> Iterator[str]:
    """The address of a store that has the table's next version, and does not say so until the program has run."""
    path = f"{table.name}/_delta_log/{loaded(storage, table).version() + 1:020}.json"
    command = [sys.executable, "-c", _DEAF, endpoint.removeprefix("http://"), path, *program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as deaf:
        assert deaf.stdout is not None
        try:
            yield f"http://127.0.0.1:{deaf.stdout.readline().strip()}"
        finally:
            deaf.terminate()
        assert deaf.stdout.read().split() == ["200", "412"]


def test_a_commit_that_the_store_was_asked_for_twice_counts_once(storage: dict[str, str], endpoint: str) -> None:
    """It has it, and fails to say so. delta-rs asks again, and is told that it exists; a successor was quicker."""
    replica = Replica(opened(storage), pipeline="shop").create(ANN)
    table = replica.schema.table
    batch = replica.batch(replica.wire().insert(BOB).take())
    succeed = [_SUCCEED, json.dumps({**storage, "AWS_SECRET_ACCESS_KEY": SECRET})]
    with deaf_to_the_next_commit(storage, table, endpoint, *succeed) as address:
        opened({**storage, "AWS_ENDPOINT_URL": address}).write_events(batch)
    assert sorted(row[0] for row in rows(storage, table)) == [1, 2]
    assert opened(storage).positions("shop")[table].position == batch.moves[table].to
    with pytest.raises(Fenced):
        opened(storage).write_events(batch)


def test_an_object_of_a_table_that_is_gone_is_that_table_s_trouble(storage: dict[str, str], endpoint: str) -> None:
    replica = Replica(opened(storage)).create(ANN)
    (file,) = loaded(storage, replica.schema.table).file_uris()
    s3_client(endpoint, SECRET).delete_object(Bucket="lake", Key=file.removeprefix("s3://lake/"))
    with raises(ErrorKind.DAMAGED, replica.schema.table, match="is not there any more"):
        replica.apply(replica.wire().update(BOB, ANN).take())


def test_aborted_copies_leave_no_object(storage: dict[str, str], endpoint: str) -> None:
    replica = Replica(opened(storage), pipeline="shop")
    destination: Any = replica.destination
    destination.begin_copy(replica.target, 1)
    replica.stage(1, 0, [ANN, BOB])
    destination.abort_copy(replica.target, 1)
    table = replica.schema.table
    folder = f"tables/{table.schema}/{table.name}/"
    assert "Contents" not in s3_client(endpoint, SECRET).list_objects_v2(Bucket="lake", Prefix=folder)


def test_no_secret_is_shown(storage: dict[str, str]) -> None:
    away = opened({**storage, "AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_RETRIES": "0"})
    shown = " ".join([*map(str, away.inspect()), repr(away._lake), repr(away._lake.place("x")), repr(away._options)])
    assert "127.0.0.1:9" in shown or "could not be used" in shown
    assert SECRET not in shown


# -- deletion vectors

MARKING = {"updates": "merge_on_read"}


def marking(storage: dict[str, str], **options: Any) -> DeltaDestination:
    return DeltaDestination("s3://lake/tables", "shop", resolved({"storage": storage, **MARKING, **options}))


@pytest.mark.slow
class TestDeletionVectorsInAnObjectStore(TestDeltaInAnObjectStore):
    def open(self) -> DeltaDestination:
        return marking(self.storage)


def test_changes_by_deletion_vectors_from_end_to_end(storage: dict[str, str]) -> None:
    """Over several checkpoints, with a worker that begins anew, and with compaction at the end."""
    replica = Replica(marking(storage, housekeeping=False), pipeline="shop")
    replica.create(*((b"%d" % number, b"n", None) for number in range(100)))
    table, expected = replica.schema.table, dict.fromkeys(range(100), "n")
    for turn in range(25):
        wire = replica.wire().delete((b"%d" % turn, None, None))
        wire.update((b"%d" % (turn + 50), b"t%d" % turn, None)).insert((b"%d" % (turn + 200), b"new", None))
        replica.apply(wire.take())
        del expected[turn]
        expected |= {turn + 50: f"t{turn}", turn + 200: "new"}
        if turn == 12:
            replica.destination = marking(storage, housekeeping=False)
    assert {row[0]: row[1] for row in rows(storage, table)} == expected
    log = [path for path in marking(storage)._lake.table(table).list("_delta_log") if "checkpoint.parquet" in path]
    assert log
    replica.destination = marking(storage)
    replica.apply(replica.wire().insert((b"999", b"last", None)).take())
    assert {row[0]: row[1] for row in rows(storage, table)} == {**expected, 999: "last"}


def test_a_commit_with_vectors_whose_answer_was_lost_counts_once(storage: dict[str, str], endpoint: str) -> None:
    replica = Replica(marking(storage, housekeeping=False), pipeline="shop").create(ANN, BOB)
    table = replica.schema.table
    batch = replica.batch(replica.wire().delete(BOB).take())
    with deaf_to_the_next_commit(storage, table, endpoint, "pass") as address:
        marking({**storage, "AWS_ENDPOINT_URL": address}, housekeeping=False).write_events(batch)
    assert rows(storage, table) == [(1, "Ann", "x")]
    assert marking(storage).positions("shop")[table].position == batch.moves[table].to


def test_vectors_where_a_commit_could_be_lost_are_refused(storage: dict[str, str], endpoint: str) -> None:
    with unconditional(endpoint) as address:
        (finding,) = marking({**storage, "AWS_ENDPOINT_URL": address}).inspect()
    assert (finding.severity, finding.kind) == ("error", ErrorKind.CONFIG)
    assert "lets an object be written twice" in finding.problem
    listed = s3_client(endpoint, SECRET).list_objects_v2(Bucket="lake", Prefix="tables/_pgetl/probe")
    assert listed["KeyCount"] == 0


@pytest.mark.parametrize(
    "more",
    [
        {"AWS_CONDITIONAL_PUT": "etag", "timeout": "30s", "connect_timeout": "5s", "pool_idle_timeout": "15 seconds"},
        {"aws_s3_allow_unsafe_rename": "true", "AWS_ENDPOINT_URL_DYNAMODB": "http://localhost:1"},
        {"AWS_SESSION_TOKEN": "token", "AWS_IMDSV1_FALLBACK": "false", "allow_invalid_certificates": "false"},
    ],
    ids=str,
)
def test_options_as_users_write_them(storage: dict[str, str], more: dict[str, str]) -> None:
    """Also those of connections, and those that only delta-rs knows."""
    assert marking({**storage, **more}).inspect() == []
    short = {name.removeprefix("AWS_").lower(): value for name, value in storage.items()}
    assert marking({**short, "allow_http": "1", **more}).inspect() == []


def test_options_of_the_environment(storage: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**storage, "AWS_SECRET_ACCESS_KEY": SECRET}.items():
        monkeypatch.setenv(name, value)
    assert marking({}).inspect() == []


def test_a_way_to_commit_that_is_shut_is_found_beforehand(storage: dict[str, str]) -> None:
    """delta-rs' own is open."""
    shut = {**storage, "AWS_CONDITIONAL_PUT": "disabled"}
    (finding,) = marking(shut).inspect()
    assert finding.severity == "error"
    assert SECRET not in str(finding)


def test_a_lock_of_the_environment_is_refused(storage: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_S3_LOCKING_PROVIDER", "dynamodb")
    with raises(ErrorKind.CONFIG, match="AWS_S3_LOCKING_PROVIDER"):
        marking(storage)
