"""What is removed from a table's folder, and what is not."""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination, actions
from airflow_provider_pgetl.engine.destinations.delta.actions import VectorReference
from airflow_provider_pgetl.engine.destinations.delta.log import TableLog
from airflow_provider_pgetl.engine.destinations.delta.storage import Place
from airflow_provider_pgetl.engine.destinations.delta.vacuum import Vacuum, _files_of
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.testing.replica import Replica
from tests.engine.destinations.delta.reading import rows_of

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
        table_log = TableLog(Place(str(self.folder)), "shop")
        table_log.refresh()
        before = table_log.standing()
        Vacuum(retention).run(table_log)
        table_log.refresh()
        assert table_log.standing() == before
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
        assert _files_of(Place(str(tmp_path)), [VectorReference("p", address, 1, 1, 1)]) == {name}
    assert _files_of(Place(str(tmp_path)), [VectorReference("i", "inline", None, 1, 1)]) == set()


def vacuum(folder: Path) -> None:
    table_log = TableLog(Place(str(folder)), "shop")
    table_log.refresh()
    Vacuum(HOUR).run(table_log)
