"""A merge of what has landed, beside another merge, a copy, a take-over and what still lands; and one that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.changes.batch import EventBatch, TablePosition
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.protocol import Merged
from airflow_provider_pgetl.engine.model.errors import Fenced
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.testing.builders import Replica, sample_schema
from tests.engine.destinations.delta.landing import Open, in_threads, landed, merge
from tests.engine.destinations.delta.reading import ANN, BOB, CAT, ids, place, rows_of
from tests.engine.destinations.delta.test_two_writers import Paused

IDENTITIES = {"key": (("k",), "default"), "key of two": (("K two", "k"), "index"), "no key": ((), "full")}


# -- two at once ------------------------------------------------------------------------------------------------------


def test_of_two_mergers_one_merges(tmp_path: Path, open_: Open) -> None:
    bag = Replica(open_(), sample_schema(key=(), identity="full"), "shop").create(ANN, ANN)
    for _ in range(3):
        bag.apply(bag.wire().insert(BOB).delete(ANN).insert(ANN).insert(CAT).take())
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda destination: merge(destination, bag).batches, [open_() for _ in range(4)]))
    assert sum(done) == 3
    assert ids(tmp_path, bag) == [1, 1, *[2] * 3, *[3] * 3]
    assert landed(tmp_path) == []


class Meddling:
    """Something happens while the first tasks of a merge run."""

    def __init__(self, meddle: Callable[[], None]) -> None:
        self._meddle = [meddle]
        self.calls = 0

    def __call__(self, function: Any, items: Sequence[Any]) -> list[Any]:
        self.calls += 1
        answers = in_threads(function, items)
        while self._meddle:
            self._meddle.pop()()
        return answers


def test_a_merger_that_was_overtaken_by_another_finds_its_work_done(
    tmp_path: Path, replica: Replica, open_: Open
) -> None:
    replica.apply(replica.wire().update((b"1", b"Anna", None)).insert(BOB).take())
    first = Meddling(lambda: assert_merged(open_(), replica))
    assert merge(replica.destination, replica, first) == Merged(0, Boundary(20))
    assert ids(tmp_path, replica) == [1, 2]
    files = {path.name for path in place(tmp_path, replica).glob("*.parquet")}
    known = {Path(uri).name for uri in DeltaTable(str(place(tmp_path, replica))).file_uris()}
    assert files - known == set(), "what it made in vain is gone"


def test_a_merger_whose_files_were_taken_away_by_another_finds_its_work_done(
    tmp_path: Path, replica: Replica, open_: Open
) -> None:
    replica.apply(replica.wire().update((b"1", b"Anna", None)).take())
    (file,) = place(tmp_path, replica).rglob("copy-*/*.parquet")

    def late(function: Any, items: Sequence[Any]) -> list[Any]:
        (changes,) = tmp_path.rglob("*-merge-*")
        begun = changes.read_bytes()
        assert_merged(open_(), replica)
        changes.write_bytes(begun)  # tasks that have read them already
        file.unlink()
        return in_threads(function, items)

    assert merge(replica.destination, replica, late) == Merged(0, Boundary(20))
    assert [row[1] for row in rows_of(place(tmp_path, replica))] == ["Anna"]


def assert_merged(destination: DeltaDestination, replica: Replica) -> None:
    assert merge(destination, replica).batches == 1


def test_a_claim_and_an_adoption_cost_no_second_merge(tmp_path: Path, replica: Replica, open_: Open) -> None:
    replica.apply(replica.wire().update((b"1", b"Anna", None)).take())

    def take_over() -> None:
        other = open_()
        other.claim("shop", 2)
        other.adopt(replace(replica.target, generation=2))

    spread = Meddling(take_over)
    assert merge(replica.destination, replica, spread).batches == 1
    assert spread.calls == 1
    other = open_()
    assert other.positions("shop") == {replica.schema.table: TablePosition(2, Boundary(20))}
    with pytest.raises(Fenced):
        replica.apply(replica.wire().insert(BOB).take())
    again = Replica(other, replica.schema, "shop", 2, 2, Boundary(20))
    again.apply(again.wire().insert(CAT).take())
    merge(other, replica)
    assert ids(tmp_path, replica) == [1, 3]


def test_a_merger_that_overlaps_a_copy_changes_nothing(tmp_path: Path, replica: Replica, open_: Open) -> None:
    replica.apply(replica.wire().update((b"1", b"Anna", None)).take())
    destination: Any = replica.destination
    spread = Meddling(lambda: open_().begin_copy(replica.target, 2))
    assert merge(destination, replica, spread).batches == 0
    assert [row[1] for row in rows_of(place(tmp_path, replica))] == ["Ann"]
    replica.stage(2, 0, [BOB])
    destination.finish_copy(replica.target, 2, Boundary(50))
    assert merge(destination, replica).batches == 0, "what had landed is void"
    assert ids(tmp_path, replica) == [2]
    assert landed(tmp_path) == []
    replica.position = Boundary(50)
    replica.apply(replica.wire().insert(CAT).take())
    assert merge(destination, replica).batches == 1
    assert ids(tmp_path, replica) == [2, 3]


@pytest.mark.parametrize("boundary", [Boundary(25), Boundary(100)], ids=["further than it", "not as far as it"])
def test_what_a_straggler_lands_behind_an_old_copy_is_void(
    tmp_path: Path, replica: Replica, open_: Open, boundary: Boundary
) -> None:
    """It looked before the copy began, and lands a batch that leads further than the copy, or not as far."""
    replica.apply(replica.wire().insert(BOB).take())
    paused = Paused(replica.wire().insert(CAT).take())
    batch = replica.batch()
    other = open_()
    with ThreadPoolExecutor() as pool:
        late = EventBatch(batch.pipeline, batch.epoch, batch.moves, paused)
        writing = pool.submit(replica.destination.write_events, late)
        assert paused.reached.wait(60)
        other.begin_copy(replica.target, 2)
        other.finish_copy(replica.target, 2, boundary)
        paused.go_on.set()
        writing.result(60)
    assert other.positions("shop") == {replica.schema.table: TablePosition(1, boundary)}
    assert merge(other, replica).batches == 0
    assert ids(tmp_path, replica) == []
    assert landed(tmp_path) == []


class Counted(Paused):
    """Steps that count how often they are read."""

    times = 0

    def __iter__(self) -> Iterator[Any]:
        self.times += 1
        yield from super().__iter__()


def test_a_merge_is_no_obstacle_to_what_lands_meanwhile(tmp_path: Path, replica: Replica, open_: Open) -> None:
    replica.apply(replica.wire().insert(BOB).take())
    steps = Counted(replica.wire().insert(CAT).take())
    batch = replica.batch()
    with ThreadPoolExecutor() as pool:
        writing = pool.submit(replica.destination.write_events, EventBatch("shop", batch.epoch, batch.moves, steps))
        assert steps.reached.wait(60)
        assert merge(open_(), replica).batches == 1
        steps.go_on.set()
        writing.result(60)
    assert steps.times == 1, "the batch is not even folded again"
    merge(open_(), replica)
    assert ids(tmp_path, replica) == [1, 2, 3]


# -- deaths -----------------------------------------------------------------------------------------------------------

MERGER = """
import sys
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta.merge.landed_merge import one_by_one
destination = DeltaDestination(sys.argv[1], "shop", {"merge": "spark"})
for table in destination.positions("shop"):
    destination.merge("shop", table, one_by_one, lambda: False)
"""


@pytest.mark.parametrize("failpoint", ["files_written", "committed", "removed", "cleared"])
def test_a_merger_that_dies_leaves_nothing_half_done(tmp_path: Path, replica: Replica, failpoint: str) -> None:
    replica.apply(replica.wire().update((b"1", b"Anna", None)).insert(BOB).take())
    replica.apply(replica.wire().delete(BOB).insert(CAT).take())
    environment = {**os.environ, "PGETL_FAILPOINT": f"merge.{failpoint}"}
    died = subprocess.run([sys.executable, "-c", MERGER, str(tmp_path)], env=environment, check=False)
    assert died.returncode == -signal.SIGKILL
    assert ids(tmp_path, replica) == ([1] if failpoint == "files_written" else [1, 3])
    replica.apply(replica.wire().update((b"3", b"Cate", None)).take())
    merge(replica.destination, replica)
    rows = rows_of(place(tmp_path, replica))
    assert sorted(row[:2] for row in rows) == [(1, "Anna"), (3, "Cate")]
    assert landed(tmp_path) == []


def test_what_a_worker_that_died_has_not_committed_goes_when_the_table_has_come_past_it(
    tmp_path: Path, replica: Replica
) -> None:
    """Until then nobody can tell it from what a worker is writing now."""
    replica.apply(replica.wire().insert(BOB).take())
    (folder,) = {path.parent for path in (tmp_path / "_pgetl").rglob("*.parquet") if path.parent.name.isdigit()}
    names = [f"{0x1E:016x}-000000-{'a' * 32}.parquet", f"{0x1E:016x}-000001-{'b' * 32}.parquet.0123abcd.writing"]
    for name in names:
        (folder / name).write_bytes(b"half")
    merge(replica.destination, replica)
    assert sorted(path.name for path in folder.iterdir()) == names
    replica.apply(replica.wire().insert(CAT).take())
    merge(replica.destination, replica)
    assert not folder.exists() or list(folder.iterdir()) == []
    assert ids(tmp_path, replica) == [1, 2, 3]
