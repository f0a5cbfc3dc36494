"""The lake in an object store that speaks S3: copies, changes, fences, and secrets that come by reference."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.delta_options import resolved
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.errors import Fenced
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.testing import DestinationConformance
from airflow_provider_pgetl.testing.replica import Replica
from tests.object_store import object_store, s3_client

ANN, BOB = (b"1", b"Ann", b"x"), (b"2", b"Bob", None)
SECRET = "not so secret"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with object_store(SECRET) as address:
        yield address


@pytest.fixture
def storage(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
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
    options = {**storage, "AWS_SECRET_ACCESS_KEY": SECRET}
    delta = DeltaTable(f"s3://lake/tables/{table.schema}/{table.name}", storage_options=options)
    return [tuple(row.values()) for row in pa.table(delta.scan()).to_pylist()]


class TestDeltaInAnObjectStore(DestinationConformance):
    @pytest.fixture(autouse=True)
    def _place(self, storage: dict[str, str]) -> None:
        self.storage = storage

    def open(self) -> DeltaDestination:
        return opened(self.storage)

    def read(self, table: TableName) -> list[tuple[Any, ...]]:
        return rows(self.storage, table)


def test_of_two_who_commit_at_once_one_does(storage: dict[str, str]) -> None:
    """No lock table is needed: the store itself refuses to write a version twice."""
    replica = Replica(opened(storage), pipeline="shop").create(ANN)
    others = [opened(storage) for _ in range(4)]
    barrier = threading.Barrier(4)

    def write(number: int) -> bool:
        batch = replica.batch(replica.wire().insert((b"%d" % (10 + number), None, None)).take(), to=20 + number)
        barrier.wait(10)
        try:
            others[number].write_events(batch)
        except Fenced:
            return False
        return True

    with ThreadPoolExecutor() as pool:
        won = list(pool.map(write, range(4)))
    assert sum(won) == 1
    assert Counter(row[0] for row in rows(storage, replica.schema.table)) == {1: 1, 10 + won.index(True): 1}


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
