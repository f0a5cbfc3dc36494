"""Changes that land beside a table: what may be acknowledged, what readers see, and what becomes of a landing that
others overtake."""

from __future__ import annotations

import logging
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.changes.batch import TablePosition
from airflow_provider_pgetl.engine.config.validation import Misdeclared
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination, apply
from airflow_provider_pgetl.engine.destinations.delta.files import data_files
from airflow_provider_pgetl.engine.destinations.delta.merge import landed_merge, landing
from airflow_provider_pgetl.engine.destinations.delta.merge.landing import LandedFile
from airflow_provider_pgetl.engine.destinations.delta.options import DeltaOptions
from airflow_provider_pgetl.engine.destinations.protocol import Merged, Misses
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.testing.builders import Replica, sample_schema
from tests.engine.destinations.delta.landing import LANDS, Open, in_threads, landed, merge, merge_all
from tests.engine.destinations.delta.reading import ANN, BOB, CAT, DAN, EVE, ids, place, rows_of
from tests.engine.destinations.sources import Source, schema_of
from tests.raising import raises

IDENTITIES = {"key": (("k",), "default"), "key of two": (("K two", "k"), "index"), "no key": ((), "full")}


# -- what is where ----------------------------------------------------------------------------------------------------


def test_what_has_landed_may_be_acknowledged_and_is_seen_once_it_is_merged(tmp_path: Path, replica: Replica) -> None:
    destination: Any = replica.destination
    table = replica.schema.table
    replica.apply(replica.wire().insert(BOB).take())
    replica.apply(replica.wire().delete(ANN).take())
    assert destination.positions("shop") == {table: TablePosition(1, Boundary(30))}
    assert destination.merged("shop") == {table: Boundary(10)}
    assert ids(tmp_path, replica) == [1]
    assert merge(destination, replica) == Merged(2, Boundary(30))
    assert destination.merged("shop") == {table: Boundary(30)}
    assert ids(tmp_path, replica) == [2]
    assert landed(tmp_path) == [], "what is merged is gone"
    assert merge(destination, replica) == Merged(0, Boundary(30))


def test_a_move_without_changes_leaves_nothing_to_merge(replica: Replica) -> None:
    destination: Any = replica.destination
    replica.apply()
    assert destination.merged("shop") == {replica.schema.table: Boundary(20)}
    assert merge(destination, replica).batches == 0


@pytest.mark.parametrize("size", [1, 1 << 26], ids=["by pieces", "at once"])
@pytest.mark.parametrize("identity", IDENTITIES.values(), ids=IDENTITIES.keys())
def test_any_sequence_of_batches(
    tmp_path: Path, identity: tuple[tuple[str, ...], Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "GATHERED_BYTES", size)
    monkeypatch.setattr(apply, "NET_BYTES", size)
    monkeypatch.setattr(landed_merge, "SLICE_BYTES", size)
    monkeypatch.setattr(data_files, "GROUP_ROWS", 7)
    destination = DeltaDestination(str(tmp_path), "shop", LANDS)
    for seed in range(8):
        choose = random.Random(seed)
        schema = schema_of(*identity, name=f"t{seed}")
        source = Source(schema, choose, keys=choose.choice([4, 200]))
        replica = Replica(destination, schema, pipeline="shop").create()
        for _ in range(2):
            for _ in range(choose.randint(1, 8)):
                replica.apply(*source.live(choose.randint(1, 30), cuts=0.05))
            merge(destination, replica)
            assert Counter(rows_of(place(tmp_path, replica))) == source.held
        assert schema.table not in destination.misses()


def test_a_long_landing_is_merged_in_slices_that_last(
    tmp_path: Path, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landed_merge, "SLICE_BYTES", 1)
    for number in range(2, 7):
        replica.apply(replica.wire().insert((b"%d" % number, None, None)).take())
    destination: Any = replica.destination
    looks = iter([False, False, False, True])
    assert destination.merge("shop", replica.schema.table, in_threads, lambda: next(looks)).batches == 3
    assert ids(tmp_path, replica) == [1, 2, 3, 4]
    assert merge(destination, replica).batches == 2
    assert ids(tmp_path, replica) == [1, 2, 3, 4, 5, 6]


def test_a_merge_takes_batches_of_one_schema_at_a_time(tmp_path: Path, replica: Replica) -> None:
    destination: Any = replica.destination
    replica.apply(replica.wire().insert(BOB).take())
    replica.schema = replace(replica.schema, comment="another version")
    replica.apply(replica.wire().insert(CAT).take())
    before = DeltaTable(str(place(tmp_path, replica))).version()
    assert merge(destination, replica).batches == 2
    assert DeltaTable(str(place(tmp_path, replica))).version() == before + 2
    assert ids(tmp_path, replica) == [1, 2, 3]


def test_changes_of_one_row_over_many_batches_rewrite_its_file_once(tmp_path: Path, replica: Replica) -> None:
    calls = 0

    def counted(function: Any, items: Sequence[Any]) -> list[Any]:
        nonlocal calls
        calls += len(items)
        return in_threads(function, items)

    for number in range(12):
        replica.apply(replica.wire().update((b"1", b"%d" % number, b"n")).take())
    assert merge(replica.destination, replica, counted).batches == 12
    assert calls == 1
    assert [row[1] for row in rows_of(place(tmp_path, replica))] == ["11"]


# -- losses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pending", [False, True])
def test_a_table_that_was_restored_to_before_what_was_merged_into_it(
    tmp_path: Path, replica: Replica, open_: Open, *, pending: bool
) -> None:
    """The changes that it lacks are no longer in the landing: nothing is merged after the gap, and the position shows
    that it was restored."""
    at = place(tmp_path, replica)
    shutil.copytree(at, tmp_path / "backup")
    replica.apply(replica.wire().insert(BOB).take())
    merge(replica.destination, replica)
    if pending:
        replica.apply(replica.wire().insert(CAT).take())
    shutil.rmtree(at)
    shutil.copytree(tmp_path / "backup", at)
    for asked in (replica.destination, open_()):
        assert isinstance(asked, DeltaDestination)
        assert asked.positions("shop") == {replica.schema.table: TablePosition(1, Boundary(10))}
        assert asked.merged("shop") == {replica.schema.table: Boundary(10)}
    with pytest.raises(Fenced, match="cannot move from"):
        replica.apply(replica.wire().insert(DAN).take())
    replica.position = Boundary(10)
    with raises(ErrorKind.DAMAGED, replica.schema.table, match="it was restored"):
        replica.apply(replica.wire().insert(DAN).take())
    assert merge(open_(), replica).batches == 0
    assert ids(tmp_path, replica) == [1]

    destination, replica.generation, replica.position = open_(), 2, Boundary(50)
    destination.begin_copy(replica.target, 2)
    replica.destination = destination
    replica.stage(2, 0, [ANN, BOB, CAT])
    destination.finish_copy(replica.target, 2, replica.position)
    for row in (DAN, EVE):
        replica.apply(replica.wire().insert(row).take())
        assert merge(destination, replica).batches == 1
    assert ids(tmp_path, replica) == [1, 2, 3, 4, 5]


def test_a_table_that_was_restored_to_before_what_is_still_there_is_merged_anew(
    tmp_path: Path, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = place(tmp_path, replica)
    shutil.copytree(at, tmp_path / "backup")
    replica.apply(replica.wire().insert(BOB).take())
    with monkeypatch.context() as patch:
        patch.setattr(landing.Landing, "clear", lambda _: None)
        merge(replica.destination, replica)
    shutil.rmtree(at)
    shutil.copytree(tmp_path / "backup", at)
    replica.apply(replica.wire().insert(CAT).take())
    assert merge(replica.destination, replica).batches == 2
    assert ids(tmp_path, replica) == [1, 2, 3]


def test_a_landed_batch_that_is_gone_is_an_error_of_its_table(tmp_path: Path, replica: Replica) -> None:
    """Each merge raises it until the table is copied again; other tables are merged."""
    destination: Any = replica.destination
    other = Replica(destination, pipeline="shop").create(ANN)
    for one in (replica, other):
        one.apply(one.wire().insert(BOB).take())
    for path in (tmp_path / "_pgetl").rglob(f"*/{replica.schema.table.name}/1/*.parquet"):
        path.unlink()
    for _ in range(2):
        with raises(
            ErrorKind.DAMAGED, replica.schema.table, match="which has landed and is not merged, is not there any more"
        ) as refused:
            merge(destination, replica)
        assert "pgetl reset FILE TABLE" in refused.value.remedy
    assert merge(destination, other).batches == 1


def test_a_worker_that_merges_itself_takes_over_where_a_batch_that_had_landed_is_gone(
    tmp_path: Path, replica: Replica
) -> None:
    replica.apply(replica.wire().insert(BOB).take())
    for path in (tmp_path / "_pgetl").rglob("1/*.parquet"):
        path.unlink()
    worker = DeltaDestination(str(tmp_path), "shop")
    worker.claim("shop", 2)
    ((table, error),) = worker.lost("shop").items()
    assert (table, error.kind, error.table) == (replica.schema.table, ErrorKind.DAMAGED, str(replica.schema.table))
    replica.destination, replica.generation, replica.epoch = worker, 2, 2
    worker.begin_copy(replica.target, 2)
    assert worker.lost("shop") == {}
    replica.stage(2, 0, [ANN, BOB])
    worker.finish_copy(replica.target, 2, replica.position)
    replica.apply(replica.wire().insert(CAT).take())
    assert ids(tmp_path, replica) == [1, 2, 3]


def test_a_landing_that_is_not_there_is_created(tmp_path: Path, replica: Replica) -> None:
    """Another writer of the epoch has recorded it in the lake metadata only; or its folder was removed."""
    replica.apply(replica.wire().insert(BOB).take())
    merge(replica.destination, replica)
    shutil.rmtree(next((tmp_path / "_pgetl").glob("shop.landing")))
    replica.apply(replica.wire().insert(CAT).take())
    assert ids(tmp_path, replica) == [1, 2], "not merged yet"
    merge(replica.destination, replica)
    assert ids(tmp_path, replica) == [1, 2, 3]


# -- ends and beginnings ----------------------------------------------------------------------------------------------


def test_what_is_forgotten_is_void_for_a_new_pipeline_of_the_id(
    tmp_path: Path, replica: Replica, open_: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """The numbers of its batches begin at one again."""
    replica.apply(replica.wire().insert(BOB).take())
    with caplog.at_level(logging.WARNING):
        open_().forget("shop")
    assert "1 landed batches that were never merged are given up" in caplog.text
    assert landed(tmp_path) == []
    replica.position = Boundary(10)
    replica.create(CAT)
    assert replica.destination.merged("shop") == {replica.schema.table: Boundary(10)}  # type: ignore[attr-defined]
    merge(replica.destination, replica)
    assert ids(tmp_path, replica) == [3]


def test_what_had_landed_is_void_once_the_table_is_copied_anew_as_a_history(tmp_path: Path, replica: Replica) -> None:
    replica.apply(replica.wire().insert(BOB).take())
    history = DeltaDestination(str(tmp_path), "shop", {"mode": "history"})
    history.claim("shop", 2)
    assert rows_of(place(tmp_path, replica)) == [(1, "Ann", "x")], "readers see what they saw"
    own = replace(replica, destination=history, generation=2, epoch=2)
    own.copy(2, ANN, BOB)
    own.apply(own.wire().insert(CAT).take())
    assert sorted(row[0] for row in rows_of(place(tmp_path, own))) == ["insert", "snapshot", "snapshot"]


def test_a_worker_that_merges_itself_first_merges_what_had_landed(tmp_path: Path, replica: Replica) -> None:
    replica.apply(replica.wire().insert(BOB).take())
    worker = DeltaDestination(str(tmp_path), "shop")
    assert worker.positions("shop") == {replica.schema.table: TablePosition(1, Boundary(20))}
    worker.claim("shop", 2)
    assert ids(tmp_path, replica) == [1, 2]
    with pytest.raises(Fenced):
        replica.apply(replica.wire().insert((b"4", None, None)).take())
    own = Replica(worker, replica.schema, "shop", 1, 2, Boundary(20))
    own.apply(own.wire().insert(CAT).take())
    assert ids(tmp_path, replica) == [1, 2, 3]
    assert worker.positions("shop") == {replica.schema.table: TablePosition(1, Boundary(30))}
    back = DeltaDestination(str(tmp_path), "shop", LANDS)
    back.claim("shop", 3)
    again = Replica(back, replica.schema, "shop", 1, 3, Boundary(30))
    again.apply(again.wire().delete(ANN).take())
    assert ids(tmp_path, replica) == [1, 2, 3]
    merge_all(back)
    assert ids(tmp_path, replica) == [2, 3]


def test_what_the_table_would_refuse_does_not_land(tmp_path: Path) -> None:
    schema = sample_schema()
    columns = (schema.columns[0], replace(schema.columns[1], not_null=True), schema.columns[2])
    replica = Replica(DeltaDestination(str(tmp_path), "shop", LANDS), replace(schema, columns=columns), "shop")
    replica.create(ANN)
    for wire in (replica.wire().insert((b"5", None, None)), replica.wire().update((b"1", None, None))):
        with raises(ErrorKind.CONSTRAINT, schema.table, match="not null"):
            replica.apply(wire.take())
    with pytest.raises(PgetlError, match="not a number"):
        replica.apply(replica.wire().insert((b"not a number", b"x", None)).take())
    assert landed(tmp_path) == []


def test_what_hits_no_row_is_counted_once_over_many_files(tmp_path: Path) -> None:
    destination = DeltaDestination(str(tmp_path), "shop", LANDS)
    replica = Replica(destination, sample_schema(), "shop")
    destination.begin_copy(replica.target, 1)
    for number, line in enumerate([ANN, CAT, (b"9", None, None)]):
        replica.stage(1, number, [line, (line[0] + b"0", None, None)])
    destination.finish_copy(replica.target, 1, Boundary(10))
    destination.claim("shop", 1)
    wire = replica.wire().delete(ANN).delete(BOB).update((b"3", b"c", None)).update((b"8", b"x", None))
    replica.apply(wire.take())
    merge(destination, replica)
    assert destination.misses() == {replica.schema.table: Misses(updates=1, deletes=1)}
    assert ids(tmp_path, replica) == [3, 9, 10, 30, 90]


def test_a_task_that_fails_leaves_the_table_and_the_landing_as_they_were(tmp_path: Path, replica: Replica) -> None:
    replica.apply(replica.wire().update((b"1", b"Anna", None)).take())
    before = {path for path in tmp_path.rglob("*") if path.is_file()}

    def failing(function: Any, items: Sequence[Any]) -> list[Any]:
        done = in_threads(function, items)
        return [PgetlError(ErrorKind.VALUE, "an executor's disk"), *done[1:]]

    with pytest.raises(PgetlError, match="disk") as caught:
        merge(replica.destination, replica, failing)
    assert caught.value.table == str(replica.schema.table)
    made = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert {path.name.partition("-")[0] for path in made} <= {"part"}, "only what a lost task wrote"
    assert merge(replica.destination, replica).batches == 1


def test_a_history_cannot_land() -> None:
    with pytest.raises(Misdeclared, match="nothing to merge"):
        DeltaOptions(mode="history", merge="spark")


def test_names_of_landed_files_tell_when_they_are_spent() -> None:
    name = f"7/{0x1F0:016x}-000002-{'a' * 32}.parquet"
    file = LandedFile.read(name)
    assert file == LandedFile(7, Boundary(0x1F0), 2, name)
    for published, position, spent in ((7, 0x1EF, False), (7, 0x1F0, True), (8, 0x1EF, True), (0, None, True)):
        record = fencing.TableMetadata(1, 8, published, None if position is None else Boundary(position))
        assert file.is_spent(record) == spent
    laid_out = LandedFile.read(name.replace("000002", "merge"))
    assert laid_out is not None
    assert laid_out.number is None
    assert LandedFile.read("_delta_log/00000000000000000000.json") is None
