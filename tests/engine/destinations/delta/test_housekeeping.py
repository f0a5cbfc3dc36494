"""A table that is written to in small batches for a long time stays fit, and its readers notice nothing."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination, housekeeping
from airflow_provider_pgetl.engine.destinations.delta.actions import VectorReference
from airflow_provider_pgetl.engine.destinations.delta.log import TableLog
from airflow_provider_pgetl.engine.destinations.delta.snapshot import LiveFile
from airflow_provider_pgetl.engine.destinations.delta.storage import Place
from airflow_provider_pgetl.testing.replica import Replica
from tests.engine.destinations.delta.reading import rows_of
from tests.engine.destinations.postgres.sources import Source, schema_of

PLACE = Path("public") / "t"


def live(*sizes: int) -> list[LiveFile]:
    return [LiveFile(f"{number}", size) for number, size in enumerate(sizes)]


def test_small_files_are_taken_when_there_are_enough_of_them() -> None:
    target = 128 << 20
    assert housekeeping.chosen(live(*[10] * 11, target), target) == []
    assert len(housekeeping.chosen(live(*[10] * 12, target), target)) == 12


def test_larger_files_wait_for_their_like() -> None:
    target = 128 << 20
    assert len(housekeeping.chosen(live(*[10] * 12, *[3 << 20] * 5), target)) == 12
    assert len(housekeeping.chosen(live(*[10] * 3, *[3 << 20] * 12), target)) == 15
    assert housekeeping.chosen(live(*[target] * 50), target) == []


def test_a_round_is_bounded_and_the_smallest_and_oldest_go_first() -> None:
    target = 1 << 30
    files = [LiveFile(f"{number}", 100 << 20, modified=-number) for number in range(40)]
    picked = housekeeping.chosen([*files, *live(*[10] * 3)], target)
    assert sum(one.size for one in picked) <= target
    assert [one.size for one in picked[:4]] == [10, 10, 10, 100 << 20]
    assert [one.path for one in picked[3:]] == [f"{number}" for number in range(39, 29, -1)]
    target = 200 << 20
    files = [LiveFile(f"{number}", 60 << 20) for number in range(40)]
    assert len(housekeeping.chosen(files, target)) == housekeeping.ROUND_BYTES // (60 << 20)
    assert len(housekeeping.chosen(live(*[10] * 5000), target)) == 1000


def test_rounds_of_any_sizes_come_to_an_end() -> None:
    """Each leaves fewer files, until too few are small."""
    for target in (1 << 20, 128 << 20, 4 << 30):
        files = live(*random.Random(target).choices([10, target // 100, target // 3, target // 2 - 1], k=200))
        for _ in range(200):
            picked = housekeeping.chosen(files, target)
            if not picked:
                break
            assert len(picked) >= 2
            assert sum(one.size for one in picked) <= max(housekeeping.ROUND_BYTES, target)
            gone = {id(one) for one in picked}
            whole, rest = divmod(sum(one.size for one in picked), target)
            made = live(*[target] * whole, *[rest] * bool(rest))
            files = [one for one in files if id(one) not in gone] + made
        assert not housekeeping.chosen(files, target)
        assert sum(one.size < target // 2 for one in files) < 4 * housekeeping.SMALL_FILES


def worn_file(path: str, size: int, deleted: int) -> LiveFile:
    vector = VectorReference("u", "x", 1, 40, deleted)
    stats = b'{"numRecords": 1000}'
    return LiveFile(path, size, zlib.compress(stats), vector=vector if deleted else None)


def test_the_file_that_lacks_most_rows_is_written_anew() -> None:
    target, large = 128 << 20, 4 << 30
    assert housekeeping.chosen([worn_file("a", target, 199), worn_file("b", target, 0)], target) == []
    some = [worn_file("a", target, 200), worn_file("b", target, 300), worn_file("c", large, 499)]
    assert [one.path for one in housekeeping.chosen(some, target)] == ["b"]
    assert [one.path for one in housekeeping.chosen([worn_file("c", large, 500), *some], target)] == ["c"]


@pytest.mark.parametrize("mode", ["upsert", "history"])
@pytest.mark.parametrize("batches", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_small_batches_leave_few_files(tmp_path: Path, mode: str, batches: int) -> None:
    destination = DeltaDestination(str(tmp_path), "shop", {"mode": mode})
    source = Source(schema_of(("k",)), random.Random(1), keys=500)
    replica = Replica(destination, source.schema, pipeline="shop").create()
    for _ in range(batches):
        replica.apply(*source.live(5, truncates=0))
        assert len(DeltaTable(str(tmp_path / PLACE)).file_uris()) <= 2 * housekeeping.SMALL_FILES
    if mode == "upsert":
        assert Counter(rows_of(tmp_path / PLACE)) == source.held
    assert destination.positions("shop")[source.schema.table].position == replica.position
    assert list((tmp_path / PLACE / "_delta_log").glob("*.checkpoint.parquet"))
    fresh = DeltaDestination(str(tmp_path), "shop", {"mode": mode})
    assert fresh.positions("shop") == destination.positions("shop"), "the record is in the checkpoint"


def test_a_worker_that_was_fenced_off_does_not_compact(tmp_path: Path) -> None:
    destination = DeltaDestination(str(tmp_path), "shop", {"housekeeping": False})
    replica = Replica(destination, schema_of(("k",)), pipeline="shop").create()
    for number in range(20):
        replica.apply(replica.wire().insert((b"%d" % number, b"a", None, None, None)).take())
    table_log = TableLog(Place(str(tmp_path / PLACE)), "shop")
    table_log.refresh()
    DeltaDestination(str(tmp_path), "shop").claim("shop", 2)
    before = set((tmp_path / PLACE).glob("*.parquet"))
    assert not housekeeping.compact(table_log, destination._shape(replica.schema))
    assert set((tmp_path / PLACE).glob("*.parquet")) == before
    assert len(rows_of(tmp_path / PLACE)) == 20


def test_a_worker_that_is_fenced_off_while_it_commits_does_not_compact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its successor does to the table is not its to carry on."""
    destination = DeltaDestination(str(tmp_path), "shop")
    replica = Replica(destination, schema_of(("k",)), pipeline="shop").create()
    for number in range(1, housekeeping.SMALL_FILES):
        replica.apply(replica.wire().insert((b"%d" % number, b"a", None, None, None)).take())
    commit = DeltaTable.create_write_transaction

    def succeeded(table: DeltaTable, *given: Any, **named: Any) -> None:
        monkeypatch.undo()
        commit(table, *given, **named)
        DeltaDestination(str(tmp_path), "shop").claim("shop", 2)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", succeeded)
    replica.apply(replica.wire().insert((b"99", b"a", None, None, None)).take())
    assert len(DeltaTable(tmp_path / PLACE).file_uris()) == housekeeping.SMALL_FILES
    assert len(set((tmp_path / PLACE).glob("*.parquet"))) == housekeeping.SMALL_FILES
