"""The list of files that is kept between commits is the table's, whoever has committed, and in whatever form."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta.log.actions import Add, Remove, VectorReference
from airflow_provider_pgetl.engine.destinations.delta.log.snapshot import LiveFile, Snapshot, vectors_named
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import Conflict, TableLog
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.testing.builders import Line, Replica
from tests.third_party.handwritten import Handwritten
from tests.third_party.readers import knowing_vectors

OPTIONS = {"updates": "merge_on_read", "housekeeping": False}


def line(number: int, note: bytes | None = None) -> Line:
    return b"%d" % number, b"n%d" % number, note


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    return Replica(DeltaDestination(str(tmp_path), "shop", OPTIONS), pipeline="shop").create(*map(line, range(30)))


@pytest.fixture
def path(tmp_path: Path, replica: Replica) -> Path:
    return tmp_path / replica.schema.table.schema / replica.schema.table.name


def known(replica: Replica) -> TableLog:
    """The log that the destination keeps."""
    destination: Any = replica.destination
    log: TableLog = destination._log("shop", replica.schema.table)
    return log


def read_anew(path: Path, version: int) -> Snapshot:
    return Snapshot.load(TableFolder(str(path)), version)


def assert_true(log: TableLog, path: Path) -> None:
    """To the log as it is read from its beginning, and to delta-rs."""
    fresh, theirs = read_anew(path, log.version), DeltaTable(path)
    assert log.version == theirs.version()
    assert log.snapshot.files == fresh.files
    assert (log.snapshot.protocol, log.snapshot.metadata) == (fresh.protocol, fresh.metadata)
    assert {Path(uri) for uri in theirs.file_uris()} == {path / one.location for one in fresh.files.values()}
    live = sum((one.rows or 0) - one.deleted for one in fresh.files.values())
    assert live == pa.table(theirs.scan()).num_rows


@dataclass
class Turns:
    """Our own changes, and a user's, with vectors and without."""

    replica: Replica
    path: Path
    numbers: list[int]
    dice: random.Random
    turn: int = 0

    def some(self) -> int:
        return self.dice.choice(self.numbers)

    def update(self) -> None:
        wire = self.replica.wire()
        for number in self.dice.sample(self.numbers, 3):
            wire.update(line(number, b"%d" % self.turn))
        self.replica.apply(wire.take())

    def delete(self) -> None:
        self.numbers.remove(number := self.some())
        self.replica.apply(self.replica.wire().delete(line(number)).take())

    def insert(self) -> None:
        self.numbers.append(100 + self.turn)
        self.replica.apply(self.replica.wire().insert(line(100 + self.turn)).take())

    def delete_by_others(self) -> None:
        self.numbers.remove(number := self.some())
        DeltaTable(self.path).delete(f"id = {number}")

    def mark_by_others(self) -> None:
        table = Handwritten.open(self.path)
        if "deletionVectors" in str(DeltaTable(self.path).protocol()):
            self.numbers.remove(number := self.some())
            table.delete_where("id", {number})

    def insert_by_others(self) -> None:
        self.numbers.append(500 + self.turn)
        row = {"id": pa.array([500 + self.turn], pa.int64()), "name": ["theirs"], "note": ["x"]}
        write_deltalake(self.path, pa.table(row), mode="append")

    def optimize(self) -> None:
        DeltaTable(self.path).optimize.compact()

    def describe(self) -> None:
        DeltaTable(self.path).alter.set_table_description(f"{self.turn}")

    def checkpoint(self) -> None:
        DeltaTable(self.path).create_checkpoint()


def test_it_follows_whoever_commits(replica: Replica, path: Path) -> None:
    """In any order."""
    dice = random.Random(13)
    turns = Turns(replica, path, list(range(30)), dice)
    ours, theirs = [turns.update, turns.delete, turns.insert], [turns.delete_by_others, turns.mark_by_others]
    also = [turns.insert_by_others, turns.optimize, turns.describe, turns.checkpoint]
    for turns.turn in range(40):
        dice.choice([*ours, *ours, *theirs, *also])()
        log = known(replica)
        log.refresh()
        if dice.random() < 0.7:
            assert_true(log, path)
    assert_true(known(replica), path)
    for reader in knowing_vectors():
        assert sorted(row[0] for row in reader.rows(path)) == sorted(turns.numbers), reader.name


def test_a_commit_that_fails_leaves_it_as_it_was(replica: Replica, path: Path) -> None:
    replica.apply(replica.wire().delete(line(3)).take())
    log = known(replica)
    log.refresh()
    before = dict(log.snapshot.files)
    DeltaTable(path).delete("id = 5")
    (old,) = log.files()
    with pytest.raises(Conflict):
        log.commit([old.remove()], log.log_state())
    assert log.snapshot.files == before
    log.refresh()
    assert_true(log, path)
    replica.apply(replica.wire().delete(line(6)).take())
    assert_true(log, path)


def test_a_commit_on_top_of_what_others_have_committed_hides_nothing_of_it(replica: Replica, path: Path) -> None:
    """Of ours, which asks for no file, as a claim."""
    log = known(replica)
    assert_true(log, path)
    DeltaTable(path).delete("id = 5")
    DeltaTable(path).delete("id = 6")
    log.refresh()
    log.commit([], log.log_state())
    assert_true(log, path)
    log.commit([], log.log_state())
    assert_true(log, path)


def test_expired_commits_are_made_up_for_by_a_checkpoint(replica: Replica, path: Path) -> None:
    """While the list was being kept: what follows it is gone, as is what it stands on."""
    log = known(replica)
    assert_true(log, path)
    another = Replica(DeltaDestination(str(path.parent.parent), "shop", OPTIONS), replica.schema, "shop")
    another.position = replica.position
    for number in range(5):
        another.apply(another.wire().delete(line(number)).take())
    DeltaTable(path).create_checkpoint()
    for version in range(DeltaTable(path).version()):
        (path / "_delta_log" / f"{version:020}.json").unlink()
    log.refresh()
    assert_true(log, path)


def test_another_table_in_its_place_is_another(replica: Replica, path: Path, tmp_path: Path) -> None:
    replica.apply(replica.wire().delete(line(3)).take())
    log = known(replica)
    kept = dict(log.snapshot.files)
    shutil.copytree(path, tmp_path / "backup")
    for number in (4, 5):
        replica.apply(replica.wire().delete(line(number)).take())
    assert log.snapshot.files != kept
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "backup", path)
    log.refresh()
    assert log.snapshot.files == kept
    shutil.rmtree(path)
    Handwritten.create(path, {"id": range(10), "name": ["x"] * 10, "note": ["x"] * 10})
    log.refresh()
    assert_true(log, path)


def test_no_commit_may_be_missing(path: Path) -> None:
    (path / "_delta_log" / f"{0:020}.json").unlink()
    with pytest.raises(PgetlError, match="commits before"):
        read_anew(path, 1)


def checkpoint(path: Path, adds: list[dict[str, Any]], schema: pa.Schema) -> None:
    """As one that has no statistics but those of this schema."""
    one = pa.struct([pa.field("path", pa.string()), pa.field("size", pa.int64()), *schema])
    whole = pa.schema([pa.field("add", pa.struct([*one, pa.field("modificationTime", pa.int64())]))])
    pq.write_table(pa.Table.from_pylist(adds, schema=whole), path / "_delta_log" / f"{0:020}.checkpoint.parquet")


def test_statistics_that_are_typed_alone(tmp_path: Path) -> None:
    """As Delta-Spark writes them where `delta.checkpoint.writeStatsAsJson` is false."""
    (tmp_path / "_delta_log").mkdir()
    kinds = [("id", pa.int64()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")), ("text", pa.string())]
    bounds = pa.struct([pa.field(*one) for one in kinds])
    parsed = pa.struct([("numRecords", pa.int64()), ("minValues", bounds), ("maxValues", bounds)])
    least = {"id": -5, "day": date(1, 1, 1), "at": datetime(2020, 1, 2, 3, 4, 5, 678901, UTC), "text": "a"}
    most = {"id": 2**63 - 1, "day": date(9999, 12, 31), "at": datetime(2021, 1, 1, tzinfo=UTC), "text": None}
    stats = {"numRecords": 7, "minValues": least, "maxValues": most}
    add = {"path": "part.parquet", "size": 1, "modificationTime": 1, "stats_parsed": stats}
    checkpoint(tmp_path, [{"add": add}], pa.schema([("stats_parsed", parsed)]))
    (file,) = read_anew(tmp_path, 0).files.values()
    assert file.rows == 7
    known = file.bounds([pa.field(*one) for one in kinds[:3]])
    cut = timedelta(milliseconds=1)  # of what others may have cut off
    assert known == ((-5, 2**63 - 1), (date(1, 1, 1), date(9999, 12, 31)), (least["at"], most["at"] + cut))
    told = json.loads(file.marked(VectorReference("u", "x", 1, 1, 1), 7).stats or "")
    assert told["minValues"]["at"] == "2020-01-02T03:04:05.678901Z"
    assert (told["numRecords"], told["tightBounds"]) == (7, False)


def test_a_remove_names_the_vector_that_the_file_has() -> None:
    first, second = VectorReference("u", "a", 1, 1, 1), VectorReference("u", "b", 1, 1, 1)
    snapshot = Snapshot(0, {"f": LiveFile("f", 1, vector=first)}, {}, {})
    for other in (None, second):
        snapshot.apply([Remove("f", 1, vector=other)])
        assert list(snapshot.files) == ["f"]
    snapshot.apply([Add("f", 1, None, vector=second), Remove("f", 1, vector=first)])
    assert snapshot.files["f"].vector == second
    snapshot.apply([Remove("f", 1, vector=second)])
    assert (snapshot.files, snapshot.version) == ({}, 4)


@pytest.mark.parametrize("adds_first", [False, True])
def test_a_file_that_a_commit_both_adds_and_removes_is_there(tmp_path: Path, adds_first: bool) -> None:
    """In any order of its actions."""
    actions: list[dict[str, Any]] = [
        {"remove": {"path": "f"}},
        {"add": {"path": "f", "size": 1, "modificationTime": 1}},
    ]
    (tmp_path / "_delta_log").mkdir()
    ordered = reversed(actions) if adds_first else actions
    (tmp_path / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, ordered)))
    assert list(read_anew(tmp_path, 0).files) == ["f"]


def test_vectors_that_may_still_be_read_are_those_of_live_files_and_of_late_removes(tmp_path: Path) -> None:
    """A remove that says no time is as late as any."""
    vectors = {
        name: {"storageType": "u", "pathOrInlineDv": name, "sizeInBytes": 1, "cardinality": 1} for name in "abcd"
    }
    actions: list[dict[str, Any]] = [
        {"add": {"path": "live", "size": 1, "modificationTime": 1, "deletionVector": vectors["a"]}},
        {"remove": {"path": "late", "deletionTimestamp": 1000, "deletionVector": vectors["b"]}},
        {"remove": {"path": "early", "deletionTimestamp": 999, "deletionVector": vectors["c"]}},
        {"remove": {"path": "some day", "deletionTimestamp": None, "deletionVector": vectors["d"]}},
    ]
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, actions)))
    named = vectors_named(TableFolder(str(tmp_path)), 0, 1000)
    assert {one.path_or_inline for one in named} == {"a", "b", "d"}
