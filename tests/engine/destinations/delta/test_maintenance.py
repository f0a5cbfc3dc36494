"""What is removed from a table's folder, and what is not."""

from __future__ import annotations

import json
import os
import random
import re
import time
import uuid
import zlib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination, maintenance
from airflow_provider_pgetl.engine.destinations.delta.log import actions
from airflow_provider_pgetl.engine.destinations.delta.log.actions import VectorReference
from airflow_provider_pgetl.engine.destinations.delta.log.snapshot import LiveFile
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import TableLog
from airflow_provider_pgetl.engine.destinations.delta.maintenance import Vacuum, _files_of
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.testing.builders import Replica
from tests.engine.destinations.delta.reading import rows_of
from tests.engine.destinations.sources import Source, schema_of

HOUR, DAY = 3600.0, 86400.0
REMEMBERED = "delta.deletedFileRetentionDuration"


class Table:
    """One row, changed again and again."""

    def __init__(self, lake: Path) -> None:
        self.replica = Replica(DeltaDestination(str(lake), "shop"), pipeline="shop").create((b"1", b"Ann", None))
        self.folder = lake / self.replica.schema.table.schema / self.replica.schema.table.name

    def change(self) -> None:
        name = b"%d" % self.replica.position.lsn
        self.replica.apply(self.replica.wire().update((b"1", name, None)).take())

    def files(self) -> set[Path]:
        hidden = {self.folder / "_delta_log", self.folder / "_pgetl"}
        return {one for one in self.folder.rglob("*") if one.is_file() and not hidden & set(one.parents)}

    def live(self) -> set[Path]:
        return set(map(Path, DeltaTable(self.folder).file_uris()))

    def age(self, days: int = 8) -> None:
        for one in self.files():
            os.utime(one, (time.time() - days * DAY,) * 2)

    def strays(self) -> list[Path]:
        """What those who died have left: half a file, one that no commit has taken, one of a range that ran twice."""
        unique = uuid.uuid4().hex
        names = [
            f"part-{unique}.parquet.0123abcd.writing",
            f"part-{unique}.parquet",
            f"copy-shop-1/000000-{unique}.parquet",
        ]
        return [self.written(name) for name in names]

    def written(self, name: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"PAR1")
        return path

    def vacuum(self, retention: float = HOUR) -> TableLog:
        table_log = TableLog(TableFolder(str(self.folder)), "shop")
        table_log.refresh()
        before = table_log.log_state()
        Vacuum(retention).run(table_log)
        table_log.refresh()
        assert table_log.log_state() == before
        assert len(rows_of(self.folder)) == 1
        return table_log


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def test_what_was_let_go_long_ago_goes(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(actions, "time", SimpleNamespace(time=lambda: time.time() - 2 * HOUR))
        table.change()
        table.change()
    kept = table.live()
    table.change()
    table.vacuum()
    assert table.files() == kept | table.live(), "what was let go just now is still being read"


def test_what_the_dead_have_left_goes(table: Table) -> None:
    table.change()
    kept = table.files()
    table.strays()
    table.age()
    table.vacuum()
    assert table.files() == kept, "the live file, and the one let go just now, though both are old"


@pytest.mark.parametrize("compacts", [True, False])
def test_a_worker_removes_it_in_passing(tmp_path: Path, table: Table, compacts: bool) -> None:
    strays = set(table.strays())
    table.age()
    options = {"vacuum_retention": DAY, "housekeeping": compacts}
    table.replica.destination = DeltaDestination(str(tmp_path), "shop", options)
    table.change()
    assert not strays & table.files()


def test_what_may_still_be_committed_stays(table: Table) -> None:
    table.age()
    table.strays()
    table.change()
    before = table.files()
    table.vacuum()
    assert table.files() == before


def test_what_a_copy_under_way_has_staged_stays_however_old(table: Table) -> None:
    destination: Any = table.replica.destination
    destination.begin_copy(table.replica.target, 2)
    table.replica.stage(2, 0, [(b"2", b"Bob", None)])
    before = table.files()
    table.age(days=100)
    table.vacuum()
    assert table.files() == before
    destination.finish_copy(table.replica.target, 2, Boundary(50))
    table.vacuum()
    assert [row[:2] for row in rows_of(table.folder)] == [(2, "Bob")]


def test_what_others_have_put_there_stays(table: Table) -> None:
    names = ["notes.parquet", "part-00000-255d067f-a2a4-427a-b1e6-aecc062fe9dd-c000.snappy.parquet"]
    theirs = {table.written(name) for name in [*names, "copy-other-1/000000-0123.parquet"]}
    table.age()
    table.vacuum()
    assert theirs <= table.files()


def test_files_that_are_kept_for_longer_than_the_log_remembers_wait_until_it_does(table: Table) -> None:
    kept = table.files()
    table.strays()
    table.age(days=40)
    before = table.files()
    assert table.vacuum(30 * DAY).table.metadata().configuration[REMEMBERED] == "interval 720 hours"
    assert table.files() == before
    table.vacuum(30 * DAY)
    assert table.files() == kept


@pytest.mark.parametrize(("said", "swept"), [("interval 2 weeks", True), ("interval 36000000 seconds", False)])
def test_what_the_table_says_of_its_memory_stays(table: Table, said: str, swept: bool) -> None:
    kept = table.files()
    table.strays()
    table.age(days=40)
    DeltaTable(table.folder).alter.set_table_properties({REMEMBERED: said})
    assert table.vacuum(10 * DAY).table.metadata().configuration[REMEMBERED] == said
    assert (table.files() == kept) == swept


def test_a_vector_goes_when_no_file_has_had_it_for_long(tmp_path: Path) -> None:
    """Those that are in use stay, however they are named, and however old they are; others' as well."""
    options = {"updates": "merge_on_read", "housekeeping": False}
    replica = Replica(DeltaDestination(str(tmp_path), "shop", options), pipeline="shop")
    replica.create(*((b"%d" % number, b"n", None) for number in range(10)))
    folder = tmp_path / replica.schema.table.schema / replica.schema.table.name
    for number in range(3):
        replica.apply(replica.wire().delete((b"%d" % number, None, None)).take())
    version = DeltaTable(folder).version()
    vectors = sorted(folder.glob("*.bin"), key=lambda one: one.stat().st_mtime_ns)
    stray = folder / f"deletion_vector_{uuid.uuid4()}.bin"
    fresh = folder / f"deletion_vector_{uuid.uuid4()}.bin"
    for one in (stray, fresh):
        one.write_bytes(b"\x01")
    for one in {*folder.glob("*.bin")} - {fresh}:
        os.utime(one, (time.time() - 30 * DAY,) * 2)
    vacuum(folder)
    assert {*folder.glob("*.bin")} == {*vectors, fresh}, "removed within the week, or not yet committed"
    first = folder / "_delta_log" / f"{version - 1:020}.json"
    long_ago = f'"deletionTimestamp":{int((time.time() - 30 * DAY) * 1000)}'
    first.write_text(re.sub(r'"deletionTimestamp":\d+', long_ago, first.read_text()))
    last = folder / "_delta_log" / f"{version:020}.json"
    lines = [json.loads(one) for one in last.read_text().splitlines()]
    for one in lines:
        if "add" in one:
            one["add"]["deletionVector"] |= {"storageType": "p", "pathOrInlineDv": vectors[-1].as_uri()}
    last.write_text("\n".join(map(json.dumps, lines)))
    DeltaTable(folder).create_checkpoint()
    vacuum(folder)
    assert {*folder.glob("*.bin")} == {*vectors[1:], fresh}
    assert [row[0] for row in rows_of(folder)] == list(range(3, 10))


def test_a_file_is_kept_however_its_address_is_written(tmp_path: Path) -> None:
    name = f"deletion_vector_{uuid.uuid4()}.bin"
    for address in (f"s3a://lake/t/{name}", f"file:/lake/{name}", f"file:///a%20lake/{name}"):
        assert _files_of(TableFolder(str(tmp_path)), [VectorReference("p", address, 1, 1, 1)]) == {name}
    assert _files_of(TableFolder(str(tmp_path)), [VectorReference("i", "inline", None, 1, 1)]) == set()


def vacuum(folder: Path) -> None:
    table_log = TableLog(TableFolder(str(folder)), "shop")
    table_log.refresh()
    Vacuum(HOUR).run(table_log)


# -- A table that is written to in small batches for a long time stays fit, and its readers notice nothing. ------------

PLACE = Path("public") / "t"


def live(*sizes: int) -> list[LiveFile]:
    return [LiveFile(f"{number}", size) for number, size in enumerate(sizes)]


def test_small_files_are_taken_when_there_are_enough_of_them() -> None:
    target = 128 << 20
    assert maintenance.chosen(live(*[10] * 11, target), target) == []
    assert len(maintenance.chosen(live(*[10] * 12, target), target)) == 12


def test_larger_files_wait_for_their_like() -> None:
    target = 128 << 20
    assert len(maintenance.chosen(live(*[10] * 12, *[3 << 20] * 5), target)) == 12
    assert len(maintenance.chosen(live(*[10] * 3, *[3 << 20] * 12), target)) == 15
    assert maintenance.chosen(live(*[target] * 50), target) == []


def test_a_round_is_bounded_and_the_smallest_and_oldest_go_first() -> None:
    target = 1 << 30
    files = [LiveFile(f"{number}", 100 << 20, modified=-number) for number in range(40)]
    picked = maintenance.chosen([*files, *live(*[10] * 3)], target)
    assert sum(one.size for one in picked) <= target
    assert [one.size for one in picked[:4]] == [10, 10, 10, 100 << 20]
    assert [one.path for one in picked[3:]] == [f"{number}" for number in range(39, 29, -1)]
    target = 200 << 20
    files = [LiveFile(f"{number}", 60 << 20) for number in range(40)]
    assert len(maintenance.chosen(files, target)) == maintenance.ROUND_BYTES // (60 << 20)
    assert len(maintenance.chosen(live(*[10] * 5000), target)) == 1000


def test_rounds_of_any_sizes_come_to_an_end() -> None:
    """Each leaves fewer files, until too few are small."""
    for target in (1 << 20, 128 << 20, 4 << 30):
        files = live(*random.Random(target).choices([10, target // 100, target // 3, target // 2 - 1], k=200))
        for _ in range(200):
            picked = maintenance.chosen(files, target)
            if not picked:
                break
            assert len(picked) >= 2
            assert sum(one.size for one in picked) <= max(maintenance.ROUND_BYTES, target)
            gone = {id(one) for one in picked}
            whole, rest = divmod(sum(one.size for one in picked), target)
            made = live(*[target] * whole, *[rest] * bool(rest))
            files = [one for one in files if id(one) not in gone] + made
        assert not maintenance.chosen(files, target)
        assert sum(one.size < target // 2 for one in files) < 4 * maintenance.SMALL_FILES


def worn_file(path: str, size: int, deleted: int) -> LiveFile:
    vector = VectorReference("u", "x", 1, 40, deleted)
    stats = b'{"numRecords": 1000}'
    return LiveFile(path, size, zlib.compress(stats), vector=vector if deleted else None)


def test_the_file_that_lacks_most_rows_is_written_anew() -> None:
    target, large = 128 << 20, 4 << 30
    assert maintenance.chosen([worn_file("a", target, 199), worn_file("b", target, 0)], target) == []
    some = [worn_file("a", target, 200), worn_file("b", target, 300), worn_file("c", large, 499)]
    assert [one.path for one in maintenance.chosen(some, target)] == ["b"]
    assert [one.path for one in maintenance.chosen([worn_file("c", large, 500), *some], target)] == ["c"]


def test_rounds_take_at_most_a_fifth_of_the_time(tmp_path: Path) -> None:
    """So that the changes that wait after a copy do not wait until all of its files are compacted."""
    destination = DeltaDestination(str(tmp_path), "shop", {"housekeeping": False})
    replica = Replica(destination, schema_of(("k",)), pipeline="shop").create()
    for number in range(maintenance.SMALL_FILES):
        replica.apply(replica.wire().insert((b"%d" % number, b"a", None, None, None)).take())
    table_log = TableLog(TableFolder(str(tmp_path / PLACE)), "shop")
    table_log.refresh()
    shape = destination._shape(replica.schema)
    now = 100.0
    compaction = maintenance.Compaction(lambda: now, bytes_per_second=sum(one.size for one in table_log.files()) // 10)
    assert not compaction.run(table_log, shape)
    now += 39.0
    assert not compaction.run(table_log, shape)
    now += 2.0
    assert compaction.run(table_log, shape)


@pytest.mark.parametrize("mode", ["upsert", "history"])
@pytest.mark.parametrize("batches", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_small_batches_leave_few_files(tmp_path: Path, mode: str, batches: int) -> None:
    destination = DeltaDestination(str(tmp_path), "shop", {"mode": mode})
    source = Source(schema_of(("k",)), random.Random(1), keys=500)
    replica = Replica(destination, source.schema, pipeline="shop").create()
    for _ in range(batches):
        replica.apply(*source.live(5, truncates=0))
        assert len(DeltaTable(str(tmp_path / PLACE)).file_uris()) <= 2 * maintenance.SMALL_FILES
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
    table_log = TableLog(TableFolder(str(tmp_path / PLACE)), "shop")
    table_log.refresh()
    DeltaDestination(str(tmp_path), "shop").claim("shop", 2)
    before = set((tmp_path / PLACE).glob("*.parquet"))
    assert not maintenance.Compaction().run(table_log, destination._shape(replica.schema))
    assert set((tmp_path / PLACE).glob("*.parquet")) == before
    assert len(rows_of(tmp_path / PLACE)) == 20


def test_a_worker_that_is_fenced_off_while_it_commits_does_not_compact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its successor does to the table is not its to carry on."""
    destination = DeltaDestination(str(tmp_path), "shop")
    replica = Replica(destination, schema_of(("k",)), pipeline="shop").create()
    for number in range(1, maintenance.SMALL_FILES):
        replica.apply(replica.wire().insert((b"%d" % number, b"a", None, None, None)).take())
    commit = DeltaTable.create_write_transaction

    def succeeded(table: DeltaTable, *given: Any, **named: Any) -> None:
        monkeypatch.undo()
        commit(table, *given, **named)
        DeltaDestination(str(tmp_path), "shop").claim("shop", 2)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", succeeded)
    replica.apply(replica.wire().insert((b"99", b"a", None, None, None)).take())
    assert len(DeltaTable(tmp_path / PLACE).file_uris()) == maintenance.SMALL_FILES
    assert len(set((tmp_path / PLACE).glob("*.parquet"))) == maintenance.SMALL_FILES
