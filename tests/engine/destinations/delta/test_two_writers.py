"""Two of everything, over one lake: whoever is no longer the owner cannot write, and nothing is twice or half."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.changes.batch import EventBatch, TablePosition
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta.apply import each
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import TableLog
from airflow_provider_pgetl.engine.destinations.delta.metadata import LakeMetadata
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.testing.builders import Replica, sample_schema
from tests.engine.destinations.delta.landing import MergedAtOnce, Open
from tests.engine.destinations.delta.reading import ANN, BOB, CAT, ids, place

MODES = ["upsert", "history", "landing", "merge_on_read"]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def open_(tmp_path: Path, mode: str) -> Open:
    if mode == "landing":
        return lambda: MergedAtOnce(str(tmp_path), "shop")
    options = {"updates": mode} if mode == "merge_on_read" else {"mode": mode}
    return lambda: DeltaDestination(str(tmp_path), "shop", options)


@pytest.fixture
def replica(open_: Open) -> Replica:
    return Replica(open_(), pipeline="shop").create(ANN)


class Paused:
    """Steps of which the end waits until it is told to go on."""

    def __init__(self, *steps: Any) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._steps = steps

    def __iter__(self) -> Iterator[Any]:
        yield from self._steps
        self.reached.set()
        assert self.go_on.wait(60)


def test_a_batch_in_flight_does_not_survive_a_take_over(tmp_path: Path, replica: Replica, open_: Open) -> None:
    paused = Paused(replica.wire().insert(BOB).take())
    batch = replica.batch()
    with ThreadPoolExecutor() as pool:
        writing = pool.submit(
            replica.destination.write_events, EventBatch(batch.pipeline, batch.epoch, batch.moves, paused)
        )
        assert paused.reached.wait(60)
        successor = open_()
        successor.claim("shop", 2)
        paused.go_on.set()
        with pytest.raises(Fenced):
            writing.result(60)
    assert ids(tmp_path, replica) == [1]
    replica.destination, replica.epoch = successor, 2
    replica.apply(replica.wire().insert(CAT).take())
    assert ids(tmp_path, replica) == [1, 3]


def test_of_two_who_move_a_table_from_one_position_one_does(tmp_path: Path, replica: Replica, open_: Open) -> None:
    """Of the same epoch even: the position alone is enough."""
    others = [open_(), open_(), open_()]
    barrier = threading.Barrier(3)

    def write(destination: DeltaDestination, number: int) -> bool:
        steps = [replica.wire().insert((b"%d" % number, None, None)).take()]
        batch = replica.batch(*steps, to=20 + number)
        barrier.wait(60)
        try:
            destination.write_events(batch)
        except Fenced:
            return False
        return True

    with ThreadPoolExecutor() as pool:
        won = list(pool.map(write, others, [5, 6, 7]))
    assert sum(won) == 1
    assert ids(tmp_path, replica) == [1, 5 + won.index(True)]


def test_overlapping_workers_lose_nothing_and_double_nothing(tmp_path: Path, replica: Replica, open_: Open) -> None:
    """Two workers of changing epochs push the same stream of batches; each takes up where the table stands."""
    changes = {Boundary(20 + 10 * n): (b"%d" % (10 + n), None, None) for n in range(30)}
    last, table = Boundary(20 + 10 * 29), replica.schema.table
    epochs = iter(range(2, 10_000))
    lock = threading.Lock()

    def work() -> None:
        destination, epoch = open_(), 0
        while True:
            with lock:
                epoch = epoch or next(epochs)
            try:
                destination.claim("shop", epoch)
                for _ in range(3):
                    stands = destination.positions("shop")[table].position
                    if stands == last:
                        return
                    to = Boundary(stands.lsn + 10)
                    mine = Replica(destination, replica.schema, "shop", 1, epoch, stands)
                    mine.apply(mine.wire().insert(changes[to]).take())
            except Fenced:
                epoch = 0
                continue
            epoch = 0

    with ThreadPoolExecutor() as pool:
        for ended in [pool.submit(work), pool.submit(work)]:
            ended.result(90)
    assert ids(tmp_path, replica) == [1, *(10 + n for n in range(30))]


def test_somebody_elses_commit_in_between_costs_another_merge(tmp_path: Path, open_: Open, mode: str) -> None:
    replica = Replica(open_(), pipeline="shop").create(ANN)
    paused = Paused(replica.wire().insert(BOB).update((b"1", b"Anna", None)).take())
    batch = replica.batch()
    with ThreadPoolExecutor() as pool:
        writing = pool.submit(
            replica.destination.write_events, EventBatch(batch.pipeline, batch.epoch, batch.moves, paused)
        )
        assert paused.reached.wait(60)
        DeltaTable(str(place(tmp_path, replica))).alter.set_table_properties({"delta.appendOnly": "false"})
        paused.go_on.set()
        writing.result(60)
    assert ids(tmp_path, replica) == ([1, 1, 2] if mode == "history" else [1, 2])


def test_a_commit_whose_answer_was_lost_counts(
    tmp_path: Path, replica: Replica, open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = TableLog.commit

    def deaf(self: TableLog, *given: Any, **named: Any) -> None:
        commit(self, *given, **named)
        raise ConnectionError("the answer was lost")

    batch = replica.batch(replica.wire().insert(BOB).take())
    with monkeypatch.context() as patch:
        patch.setattr(TableLog, "commit", deaf)
        with pytest.raises(ConnectionError):
            replica.destination.write_events(batch)
    again = open_()
    assert again.positions("shop") == {replica.schema.table: TablePosition(1, Boundary(20))}
    again.write_events(batch)
    assert ids(tmp_path, replica) == [1, 2]
    assert len(DeltaTable(str(place(tmp_path, replica))).file_uris()) == 2


def test_a_batch_that_failed_half_way_goes_on_with_the_other_tables(
    tmp_path: Path, open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    destination = open_()
    replicas = [Replica(destination, sample_schema(), "shop").create(ANN) for _ in range(3)]
    batches = [one.batch(one.wire().insert(BOB).take()) for one in replicas]
    moves = {table: move for batch in batches for table, move in batch.moves.items()}
    whole = EventBatch("shop", 1, moves, [step for batch in batches for step in batch.steps])
    commit, count = TableLog.commit, iter(range(10))

    def second_fails(self: TableLog, *given: Any, **named: Any) -> None:
        if next(count) == 1:
            raise PgetlError(ErrorKind.CONNECTION, "the store is away")
        commit(self, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(TableLog, "commit", second_fails)
        with pytest.raises(PgetlError, match="away"):
            destination.write_events(whole)
    moved = [position.position for position in destination.positions("shop").values()]
    assert sorted(moved) == [Boundary(10), Boundary(10), Boundary(20)]
    destination.write_events(whole)
    for replica in replicas:
        assert ids(tmp_path, replica) == [1, 2]


def test_readers_keep_the_old_table_until_a_copy_is_published(tmp_path: Path, replica: Replica, mode: str) -> None:
    before = DeltaTable(str(place(tmp_path, replica)))
    destination: Any = replica.destination
    destination.begin_copy(replica.target, 2)
    replica.stage(2, 0, [BOB])
    assert ids(tmp_path, replica) == [1]
    destination.finish_copy(replica.target, 2, Boundary(50))
    assert ids(tmp_path, replica) == ([1, 2] if mode == "history" else [2])
    assert before.count() == 1, "who has begun to read goes on reading"


def test_superseded_and_failed_copies_leave_no_file(tmp_path: Path, replica: Replica) -> None:
    destination: Any = replica.destination
    for attempt in (2, 3):
        destination.begin_copy(replica.target, attempt)
        replica.stage(attempt, 0, [BOB])
    destination.abort_copy(replica.target, 3)
    folder = place(tmp_path, replica)
    assert not list(folder.rglob("copy-*-[23]/*"))
    assert not list(folder.glob("_pgetl/*"))
    assert ids(tmp_path, replica) == [1]


def test_a_copy_that_begins_late_takes_nothing_from_its_successor(
    tmp_path: Path, replica: Replica, open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has noted itself in the book; before it comes to the table, the next attempt begins and is published."""
    other, change = open_(), LakeMetadata.change

    def paused(self: LakeMetadata, *given: Any) -> Any:
        monkeypatch.undo()
        entries = change(self, *given)
        other.begin_copy(replica.target, 3)
        replica.stage(3, 0, [BOB])
        other.finish_copy(replica.target, 3, Boundary(50))
        return entries

    destination: Any = replica.destination
    monkeypatch.setattr(LakeMetadata, "change", paused)
    with pytest.raises(Fenced):
        destination.begin_copy(replica.target, 2)
    assert other.positions("shop") == {replica.schema.table: TablePosition(1, Boundary(50))}
    assert 2 in ids(tmp_path, replica)


def test_a_range_that_ran_twice_at_once_is_in_the_table_once(tmp_path: Path, open_: Open) -> None:
    replica = Replica(open_(), pipeline="shop")
    replica.destination.begin_copy(replica.target, 1)
    barrier = threading.Barrier(2)

    def batches() -> Iterator[Any]:
        barrier.wait(60)
        yield from replica.copied([ANN, BOB])

    def store(destination: Any) -> int:
        return int(destination.write_range_rows(replica.target, 1, 0, Boundary(10), batches()))

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(store, [open_(), open_()])) == [2, 2]
    replica.destination.finish_copy(replica.target, 1, Boundary(10))
    assert ids(tmp_path, replica) == [1, 2]
    assert len(list((place(tmp_path, replica) / "copy-shop-1").iterdir())) == 1


# -- requests about many tables at once --------------------------------------------------------------------------------


def test_answers_come_in_the_order_of_what_was_asked() -> None:
    assert each(lambda number: number * 2, range(100)) == [number * 2 for number in range(100)]
    assert each(str, []) == []


def test_several_wait_at_once() -> None:
    meeting = threading.Barrier(8, timeout=60)
    each(lambda _: meeting.wait(), range(8))


def test_of_few_each_is_asked_in_the_thread_that_asks() -> None:
    assert each(lambda _: threading.current_thread(), range(3)) == [threading.current_thread()] * 3


def test_a_failure_is_raised() -> None:
    def fail(number: int) -> None:
        if number == 7:
            raise KeyError(number)

    with pytest.raises(KeyError):
        each(fail, range(20))
