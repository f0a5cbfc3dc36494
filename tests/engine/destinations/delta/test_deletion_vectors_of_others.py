"""A user marks rows as deleted by deletion vectors. What pgetl does then must be right, for all who know vectors.

Each test is run twice: with vectors that are written by hand, and with those of the real Delta-Spark.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.changes.batch import Truncate
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination, maintenance
from airflow_provider_pgetl.engine.model.positions import CommitLsn
from airflow_provider_pgetl.testing.builders import ABSENT, Line, Replica
from tests.engine.destinations.delta.landing import MergedAtOnce
from tests.third_party.delta_spark import DeltaSpark
from tests.third_party.handwritten import Handwritten
from tests.third_party.readers import knowing_vectors

Model = dict[int, tuple[str | None, str | None]]
ENABLE = "alter table {table} set tblproperties (delta.enableDeletionVectors = true)"
BOTH = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"]}}
BOTH["protocol"]["writerFeatures"] = ["deletionVectors", "invariants", "appendOnly"]
DAY = 86400.0
OPENED: dict[str, tuple[Callable[..., DeltaDestination], dict[str, Any]]] = {
    "worker": (DeltaDestination, {}),
    "merge_on_read": (DeltaDestination, {"updates": "merge_on_read"}),
    "landing": (MergedAtOnce, {}),
}


@dataclass
class ByHand:
    """Deletes and updates as Delta-Spark does, without it."""

    spark: None = None

    def delete(self, path: Path, *ids: int) -> None:
        self._mark(path, ids)

    def update(self, path: Path, note: str, *rows: Line) -> None:
        """Rows get another note; they are given as they are now."""
        texts = [(int(number or 0), None if name is None else name.decode()) for number, name, _ in rows]
        columns = {"id": [one[0] for one in texts], "name": [one[1] for one in texts], "note": [note] * len(texts)}
        self._mark(path, columns["id"], Handwritten(path).write(columns))

    def _mark(self, path: Path, ids: Any, *more: dict[str, Any]) -> None:
        table = Handwritten.open(path)
        raised = [] if "deletionVectors" in str(table.first) else [BOTH]
        table.delete_where("id", set(ids), *raised, *more)


@dataclass
class BySpark:
    spark: DeltaSpark

    def delete(self, path: Path, *ids: int) -> None:
        self.spark.sql(path, ENABLE, f"delete from {{table}} where id in ({_listed(ids)})")

    def update(self, path: Path, note: str, *rows: Line) -> None:
        ids = [int(row[0] or 0) for row in rows]
        self.spark.sql(path, ENABLE, f"update {{table}} set note = '{note}' where id in ({_listed(ids)})")


def _listed(ids: Any) -> str:
    return ", ".join(map(str, ids))


@pytest.fixture(params=["by hand", pytest.param("by Spark", marks=[pytest.mark.slow, pytest.mark.spark])])
def user(request: pytest.FixtureRequest) -> ByHand | BySpark:
    return ByHand() if request.param == "by hand" else BySpark(request.getfixturevalue("delta_spark"))


def line(number: int, note: str | None = None) -> Line:
    return b"%d" % number, b"n%d" % number, None if note is None else note.encode()


@dataclass
class Table:
    """Twenty rows, of which the user deletes 3 and 4, and gives 5 and 6 another note."""

    lake: Path
    user: ByHand | BySpark
    opened: Callable[..., Any] = DeltaDestination
    options: dict[str, Any] = field(default_factory=dict)
    model: Model = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.replica = Replica(self.open(), pipeline="shop").create(*map(line, range(1, 21)))
        self.path = self.lake / self.replica.schema.table.schema / self.replica.schema.table.name
        self.model |= {number: (f"n{number}", None) for number in range(1, 21)}
        self.user_deletes(3, 4)
        self.user_updates("theirs", 5, 6)

    def open(self) -> Any:
        return self.opened(str(self.lake), "shop", self.options)

    def user_deletes(self, *ids: int) -> None:
        self.user.delete(self.path, *ids)
        for number in ids:
            del self.model[number]

    def user_updates(self, note: str, *ids: int) -> None:
        self.user.update(self.path, note, *map(line, ids))
        self.model |= {number: (f"n{number}", note) for number in ids}

    def inserts(self, *ids: int) -> None:
        wire = self.replica.wire()
        for number in ids:
            wire.insert(line(number))
            self.model[number] = f"n{number}", None
        self.replica.apply(wire.take())

    def updates(self, *ids: int) -> None:
        wire = self.replica.wire()
        for number in ids:
            wire.update(line(number, "ours"))
            self.model[number] = f"n{number}", "ours"
        self.replica.apply(wire.take())

    def deletes(self, *ids: int) -> None:
        wire = self.replica.wire()
        for number in ids:
            wire.delete(line(number))
            self.model.pop(number, None)
        self.replica.apply(wire.take())

    def check(self) -> None:
        expected = sorted(((number, *rest) for number, rest in self.model.items()), key=repr)
        for reader in knowing_vectors(self.user.spark):
            assert reader.rows(self.path) == expected, reader.name


@pytest.fixture(params=list(OPENED))
def table(tmp_path: Path, user: ByHand | BySpark, request: pytest.FixtureRequest) -> Table:
    found = Table(tmp_path, user, *OPENED[request.param])
    found.check()
    return found


def test_an_update_brings_back_no_row_and_doubles_none(table: Table) -> None:
    """Of a row in the file that has marks, of one that the user has changed, and of both files at once."""
    for ids in ((7,), (5,), (8, 6, 9)):
        table.updates(*ids)
        table.check()


def test_a_delete_takes_out_one_row(table: Table) -> None:
    for ids in ((7,), (5,), (8, 6, 9)):
        table.deletes(*ids)
        table.check()


def test_a_delete_of_what_the_user_has_deleted_changes_nothing(table: Table) -> None:
    table.deletes(3)
    table.check()
    table.deletes(4, 7)
    table.check()


def test_an_insert_goes_beside_the_marks(table: Table) -> None:
    table.inserts(21, 22)
    table.check()


def test_a_row_that_the_user_has_deleted_is_inserted_again(table: Table) -> None:
    table.inserts(3)
    table.check()
    table.updates(3)
    table.check()


def test_a_key_moves(table: Table) -> None:
    """To one that is new, and to one that the user has deleted."""
    for before, after in ((7, 70), (8, 3), (5, 50)):
        table.replica.apply(table.replica.wire().update(line(after, "moved"), line(before)).take())
        del table.model[before]
        table.model[after] = f"n{after}", "moved"
        table.check()


def test_values_that_an_update_leaves_out_are_those_that_the_user_sees(table: Table) -> None:
    """An unchanged value that is stored apart (TOAST) is not sent: it comes from the row that is live."""
    for number in (5, 7):
        table.replica.apply(table.replica.wire().update((b"%d" % number, b"new", ABSENT)).take())
        table.model[number] = "new", table.model[number][1]
        table.check()


def test_a_truncate_empties_it(table: Table) -> None:
    table.replica.apply(Truncate(table.replica.schema, CommitLsn(1), 1))
    table.model.clear()
    table.check()
    table.inserts(3, 40)
    table.check()


def test_a_copy_takes_the_place_of_everything(table: Table) -> None:
    table.replica.generation = 2
    table.replica.copy(2, line(3), line(50))
    table.model = {3: ("n3", None), 50: ("n50", None)}
    table.check()
    table.updates(3)
    table.inserts(5)
    table.check()


def test_the_user_and_pgetl_take_turns(table: Table) -> None:
    for number in range(7, 15, 2):
        table.updates(number)
        table.user_deletes(number)
        table.user_updates(f"theirs {number}", number + 1)
        table.check()
        table.updates(number + 1)
        table.inserts(100 + number)
        table.user_deletes(100 + number)
        table.check()


def test_a_worker_that_starts_anew_goes_on(table: Table) -> None:
    destination: Any = table.open()
    destination.claim("shop", 2)
    assert destination.lost("shop") == {}
    assert table.replica.schema.table in destination.positions("shop")
    table.replica.destination, table.replica.epoch = destination, 2
    table.updates(7, 5)
    table.inserts(21)
    table.check()


def test_a_compaction_folds_what_is_marked(tmp_path: Path, user: ByHand | BySpark) -> None:
    """Files with marks are written together with the others, and the checkpoints between say the same."""
    table = Table(tmp_path, user)
    batches = 3 * maintenance.SMALL_FILES
    for number in range(100, 100 + batches):
        table.inserts(number)
        if number % 12 == 0:
            table.user_deletes(number)
    table.check()
    assert len(DeltaTable(table.path).file_uris()) < batches
    assert list((table.path / "_delta_log").glob("*.checkpoint.parquet"))
    table.replica.destination = table.open()
    table.updates(7, 5, 101)
    table.check()


def test_a_vacuum_keeps_the_marks_that_are_live(tmp_path: Path, user: ByHand | BySpark) -> None:
    """However old they are."""
    table = Table(tmp_path, user, options={"vacuum_retention": DAY, "housekeeping": False})
    table.updates(7)
    table.user_deletes(8)
    for one in table.path.rglob("*"):
        os.utime(one, (time.time() - 30 * DAY,) * 2)
    for number in (21, 22):
        table.replica.destination = table.open()  # one looks for what is to be removed when it begins
        table.inserts(number)
        table.check()


def test_rows_of_a_history_stay_deleted(tmp_path: Path, user: ByHand | BySpark) -> None:
    """Of a table that holds each change as a row nothing is ever written anew but by a compaction."""
    replica = Replica(DeltaDestination(str(tmp_path), "shop", {"mode": "history"}), pipeline="shop")
    replica.create(*map(line, range(1, 21)))
    path = tmp_path / replica.schema.table.schema / replica.schema.table.name
    user.delete(path, 3, 4)
    for number in range(100, 100 + 2 * maintenance.SMALL_FILES):
        replica.apply(replica.wire().insert(line(number)).take())
    expected = sorted({*range(1, 21), *range(100, 100 + 2 * maintenance.SMALL_FILES)} - {3, 4})
    for reader in knowing_vectors(user.spark):
        assert sorted(reader.read(path)["id"].to_pylist()) == expected, reader.name
