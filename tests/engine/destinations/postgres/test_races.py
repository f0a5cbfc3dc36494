"""Two of everything: whoever is no longer the owner cannot write, whatever it holds, and nothing is ever half."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest

from airflow_provider_pgetl.engine.changes.batch import EventBatch, TablePosition
from airflow_provider_pgetl.engine.destinations.postgres import PostgresDestination, metadata
from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.testing.builders import Replica
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.waiting import until

ANN, BOB = (b"1", b"Ann", b"x"), (b"2", b"Bob", None)
Open = Callable[[str], PostgresDestination]
BY_NAME = "select pid from pg_stat_activity where application_name = %s and datname = current_database()"


@pytest.fixture
def open_(database: Database) -> Iterator[Open]:
    opened: list[PostgresDestination] = []

    def one_more(worker: str) -> PostgresDestination:
        opened.append(PostgresDestination(database.uri, "shop", worker))
        return opened[-1]

    yield one_more
    for destination in opened:
        destination.shutdown()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as executor:
        yield executor


def rows(database: Database, replica: Replica) -> list[int]:
    return [row[0] for row in database.execute(f"select id from {replica.schema.table.sql} order by id")]


class Paused:
    """A batch's steps, of which the second waits until it is told to go on."""

    def __init__(self, replica: Replica) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        many = replica.wire()
        for number in range(100, 200):
            many.insert((b"%d" % number, None, None))
        self._steps = [many.take(), replica.wire().insert(BOB).take()]
        self.batch = replica.batch()
        self.batch = EventBatch(self.batch.pipeline, self.batch.epoch, self.batch.moves, self)

    def __iter__(self) -> Iterator[object]:
        yield self._steps[0]
        self.reached.set()
        assert self.go_on.wait(60)
        yield self._steps[1]


def started(pool: ThreadPoolExecutor, replica: Replica) -> tuple[Paused, Future[None]]:
    """A batch in the middle of its transaction."""
    paused = Paused(replica)
    writing = pool.submit(replica.destination.write_events, paused.batch)
    assert paused.reached.wait(60)
    return paused, writing


def until_one_waits(database: Database) -> None:
    """For a lock of somebody else's."""
    waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    until(lambda: database.execute(waiting), "a session waits", pause=0.01)


def test_a_take_over_waits_for_the_batch_in_flight(database: Database, open_: Open, pool: ThreadPoolExecutor) -> None:
    replica = Replica(open_("old"), pipeline="shop").create(ANN)
    paused, writing = started(pool, replica)
    claiming = pool.submit(open_("new").claim, "shop", 2)
    until_one_waits(database)
    assert not claiming.done()
    paused.go_on.set()
    writing.result(60)
    claiming.result(60)
    assert len(rows(database, replica)) == 102
    replica.position = Boundary(20)
    with pytest.raises(Fenced):
        replica.apply(replica.wire().delete(ANN).take())


def test_a_take_over_ends_a_writer_that_does_not_let_go(
    database: Database, open_: Open, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "PATIENCE", 0.2)
    replica = Replica(open_("old"), pipeline="shop").create(ANN)
    paused, writing = started(pool, replica)
    successor = open_("new")
    successor.claim("shop", 2)
    assert rows(database, replica) == [1]
    assert successor.positions("shop") == {replica.schema.table: TablePosition(1, Boundary(10))}
    paused.go_on.set()
    with pytest.raises(PgetlError) as caught:
        writing.result(60)
    assert caught.value.transient
    with pytest.raises(Fenced):
        replica.destination.write_events(replica.batch(replica.wire().delete(ANN).take()))


def test_many_writers_of_two_epochs_interleaved(database: Database, open_: Open, pool: ThreadPoolExecutor) -> None:
    """Each batch is granted to one of them, and only to the last who claimed."""
    replica = Replica(open_("first"), pipeline="shop").create()
    workers = [Replica(open_(f"w{at}"), replica.schema, "shop", epoch=at + 2) for at in range(4)]

    def write(worker: Replica) -> int:
        worker.destination.claim("shop", worker.epoch)  # type: ignore[attr-defined]  # Positions
        for granted in range(50):
            worker.position = worker.destination.positions("shop")[worker.schema.table].position  # type: ignore[attr-defined]
            line = (b"%d" % (worker.epoch * 1000 + granted), None, None)
            try:
                worker.apply(worker.wire().insert(line).take())
            except Fenced:
                return granted
        return 50

    granted = list(pool.map(_claimed_or_late(write), workers))
    assert granted[-1] == 50
    assert len(rows(database, replica)) == sum(granted)
    position = open_("reader").positions("shop")[replica.schema.table].position
    assert position.lsn == 10 + 10 * sum(granted)


def _claimed_or_late(write: Callable[[Replica], int]) -> Callable[[Replica], int]:
    def attempt(worker: Replica) -> int:
        try:
            return write(worker)
        except Fenced:
            return 0

    return attempt


@pytest.mark.parametrize("moment", ["in the batch", "between batches"])
def test_a_writer_that_is_killed_leaves_nothing_half_and_goes_on(
    database: Database, open_: Open, pool: ThreadPoolExecutor, moment: str
) -> None:
    destination = open_("apply")
    replica = Replica(destination, pipeline="shop").create(ANN)
    if moment == "in the batch":
        paused, writing = started(pool, replica)
        kill(database, "pgetl shop apply")
        paused.go_on.set()
        with pytest.raises(PgetlError) as caught:
            writing.result(60)
    else:
        kill(database, "pgetl shop apply")
        with pytest.raises(PgetlError) as caught:
            replica.apply(replica.wire().insert(BOB).take())
    assert caught.value.kind is ErrorKind.CONNECTION
    assert caught.value.table is None
    assert rows(database, replica) == [1]
    replica.apply(replica.wire().insert(BOB).take())
    assert rows(database, replica) == [1, 2]


def kill(database: Database, application: str) -> None:
    for (pid,) in database.execute(BY_NAME, (application,)):
        database.execute("select pg_terminate_backend(%s, 5000)", (pid,))


def test_a_batch_can_be_cancelled_from_another_thread(
    database: Database, open_: Open, pool: ThreadPoolExecutor
) -> None:
    destination = open_("apply")
    replica = Replica(destination, pipeline="shop").create(ANN)
    with database.connect() as reader, reader.transaction():
        reader.execute(f"lock table {replica.schema.table.sql}".encode())
        writing = pool.submit(replica.apply, replica.wire().insert(BOB).take())
        until_one_waits(database)
        destination.cancel()
        with pytest.raises(PgetlError) as caught:
            writing.result(60)
    assert caught.value.transient
    assert rows(database, replica) == [1]
    replica.apply(replica.wire().insert(BOB).take())


def test_a_superseded_copy_that_hangs_is_ended(
    database: Database, open_: Open, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "PATIENCE", 0.2)
    old, new = open_("range 1"), open_("driver")
    replica = Replica(old, pipeline="shop")
    old.begin_copy(replica.target, 1)
    block = b"".join(replica.copy_stream([ANN]))
    reached, go_on = threading.Event(), threading.Event()

    def hanging() -> Iterator[bytes]:
        yield block[:5]
        reached.set()
        assert go_on.wait(60)
        yield block[5:]

    writing = pool.submit(old.write_range, replica.target, 1, 0, hanging())
    assert reached.wait(60)
    new.begin_copy(replica.target, 2)
    go_on.set()
    with pytest.raises(PgetlError):
        writing.result(60)
    with pytest.raises(Fenced):
        old.write_range(replica.target, 1, 0, [block])
    new.finish_copy(replica.target, 2, Boundary(10))
    assert rows(database, replica) == []


def test_one_range_sent_by_two_tasks_at_once_is_stored_once(
    database: Database, open_: Open, pool: ThreadPoolExecutor
) -> None:
    first, second = open_("range 1"), open_("range 2")
    replica = Replica(first, pipeline="shop")
    first.begin_copy(replica.target, 1)
    block = b"".join(replica.copy_stream([ANN, BOB]))
    reached, go_on = threading.Event(), threading.Event()

    def slow() -> Iterator[bytes]:
        yield block
        reached.set()
        assert go_on.wait(60)

    one = pool.submit(first.write_range, replica.target, 1, 0, slow())
    assert reached.wait(60)
    other = pool.submit(second.write_range, replica.target, 1, 0, [block])
    time.sleep(0.2)
    go_on.set()
    assert (one.result(60), other.result(60)) == (2, 2)
    first.finish_copy(replica.target, 1, Boundary(10))
    assert rows(database, replica) == [1, 2]


def test_many_start_at_once_on_an_empty_database(database: Database, pool: ThreadPoolExecutor) -> None:
    sessions = [Session(database.uri, f"pgetl shop {at}") for at in range(8)]
    list(pool.map(metadata.ensure, sessions))
    for session in sessions:
        session.close()
    found = database.execute("select count(*) from pg_tables where schemaname = 'pgetl'")
    assert found == [(3,)]


def test_readers_see_the_old_table_or_the_new_one(database: Database, open_: Open, pool: ThreadPoolExecutor) -> None:
    destination = open_("driver")
    replica = Replica(destination, pipeline="shop").create(*[(b"%d" % at, None, None) for at in range(10)])
    stop = threading.Event()

    def look() -> set[int]:
        seen = set()
        with psycopg.connect(database.uri, autocommit=True) as reader:
            while not stop.is_set():
                found = reader.execute(f"select count(*) from {replica.schema.table.sql}".encode()).fetchone()
                assert found is not None
                seen.add(found[0])
        return seen

    looking = pool.submit(look)
    for attempt in range(2, 12):
        destination.begin_copy(replica.target, attempt)
        replica.stage(attempt, 0, [(b"%d" % at, None, None) for at in range(attempt * 10)])
        destination.finish_copy(replica.target, attempt, Boundary(10))
    stop.set()
    assert looking.result(60) <= {attempt * 10 for attempt in range(1, 12)}
