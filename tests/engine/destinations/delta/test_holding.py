"""A Delta table is written to by the pipeline that has published what it holds, and only while it is that table."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.delta.shape import KIND
from airflow_provider_pgetl.engine.destinations.protocol import Positions
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.testing.builders import Replica
from tests.engine.destinations.delta.landing import LANDS, in_threads
from tests.engine.destinations.delta.reading import ANN, BOB, CAT, rows_of
from tests.raising import raises

THEIRS = pa.table({"id": pa.array([7], pa.int64()), "name": ["theirs"], "note": ["x"]})
MODES: dict[str, dict[str, str]] = {
    "upsert": {},
    "history": {"mode": "history"},
    "landing": LANDS,
    "merge_on_read": {"updates": "merge_on_read"},
}
Open = Callable[[str], DeltaDestination]


@pytest.fixture(params=sorted(MODES))
def open_(tmp_path: Path, request: pytest.FixtureRequest) -> Open:
    return lambda pipeline: DeltaDestination(str(tmp_path), pipeline, MODES[request.param])


@pytest.fixture
def replica(open_: Open) -> Replica:
    """Copied, and written to twice."""
    made = Replica(open_("shop"), pipeline="shop").create(ANN)
    for _ in range(2):
        made.apply(made.wire().update(ANN).take())
    return made


@pytest.fixture
def place(tmp_path: Path, replica: Replica) -> Path:
    table = replica.schema.table
    return tmp_path / table.schema / table.name


def replaced_by(replica: Replica, open_: Open) -> Replica:
    """Another pipeline's copy over it."""
    return replace(replica, destination=open_("other"), pipeline="other", epoch=1, replaces=True).create(BOB)


def assert_lost(replica: Replica, again: DeltaDestination, kind: ErrorKind, words: str) -> None:
    """Asserts that a write raises the error, and that `lost` returns it, both in the process that has written the table
    and in a new one."""
    with raises(kind, replica.schema.table, match=words) as refused:
        replica.destination.write_events(replica.batch(replica.wire().insert(CAT).take()))
    assert not refused.value.transient
    assert refused.value.remedy
    for asked in (replica.destination, again):
        assert isinstance(asked, Positions)
        assert [words in error.message for error in asked.lost("shop").values()] == [True]


def test_a_table_that_another_pipeline_has_replaced(replica: Replica, place: Path, open_: Open) -> None:
    """A take-over by the pipeline that had it changes nothing, and the pipeline that has it goes on."""
    destination: Any = replica.destination
    assert destination.lost("shop") == {}
    other = replaced_by(replica, open_)
    assert_lost(replica, open_("shop"), ErrorKind.OCCUPIED, "pipeline other has replaced it")
    before = DeltaTable(place).version()
    open_("shop").claim("shop", 2)
    replica.epoch = 2
    assert_lost(replica, open_("shop"), ErrorKind.OCCUPIED, "pipeline other has replaced it")
    assert DeltaTable(place).version() == before
    other.apply(other.wire().insert(CAT).take())
    assert open_("other").lost("other") == {}
    with pytest.raises(PgetlError, match="rows that pipeline other wrote"):
        destination.begin_copy(replace(replica.target, generation=2), 2)


def test_what_has_landed_is_not_merged_into_the_table_of_another(tmp_path: Path) -> None:
    def open_landing(pipeline: str) -> DeltaDestination:
        return DeltaDestination(str(tmp_path), pipeline, LANDS)

    destination = open_landing("shop")
    replica = Replica(destination, pipeline="shop").create(ANN)
    replica.apply(replica.wire().insert(CAT).take())
    replaced_by(replica, open_landing)
    table = replica.schema.table
    for _ in range(2):
        with pytest.raises(PgetlError, match="pipeline other has replaced it"):
            destination.merge("shop", table, in_threads, lambda: False)
    assert [row[:2] for row in rows_of(tmp_path / table.schema / table.name)] == [(2, "Bob")]


@pytest.mark.parametrize("commits", [0, 1, 12])
def test_a_folder_that_was_exchanged(replica: Replica, place: Path, open_: Open, commits: int) -> None:
    """`commits`: how many versions the new table has; with none, the folder is gone."""
    shutil.rmtree(place)
    for _ in range(commits):
        write_deltalake(place, THEIRS, mode="append")
    words = "is not the table that was copied" if commits else "was dropped in the destination"
    assert_lost(replica, open_("shop"), ErrorKind.SCHEMA, words)
    destination: Any = replica.destination
    destination.claim("shop", 2)
    assert not commits or DeltaTable(place).version() == commits - 1
    again = replace(replica.target, generation=2, replaces=True)
    destination.begin_copy(again, 2)
    destination.finish_copy(again, 2, replica.position)
    assert destination.lost("shop") == {}


def restore(place: Path) -> None:
    DeltaTable(place).restore(0)


def overwrite(place: Path) -> None:
    write_deltalake(place, THEIRS, mode="overwrite", schema_mode="overwrite")


def create_or_replace(place: Path) -> None:
    DeltaTable.create(str(place), DeltaTable(place).schema(), mode="overwrite")


@pytest.mark.parametrize(
    ("meddle", "operation"),
    [
        (restore, "RESTORE"),
        (overwrite, "WRITE"),
        (create_or_replace, "CREATE OR REPLACE TABLE"),
    ],
)
def test_another_state_in_the_place_of_the_tables(
    replica: Replica, place: Path, open_: Open, meddle: Callable[[Path], None], operation: str
) -> None:
    """The position stays in the log, but the rows are others. That is found after a take-over as well, and after later
    commits of others."""
    meddle(place)
    DeltaTable(place).optimize.compact()
    before = DeltaTable(place).version()
    words = rf"others have made a commit to it \({operation}\)"
    with raises(ErrorKind.SCHEMA, replica.schema.table, match=words) as refused:
        replica.destination.write_events(replica.batch(replica.wire().insert(CAT).take()))
    assert "`pgetl reset FILE TABLE`" in refused.value.remedy
    successor: Any = open_("shop")
    successor.claim("shop", 2)
    replica.epoch = 2
    assert DeltaTable(place).version() == before
    for asked in (replica.destination, successor, open_("shop")):
        assert isinstance(asked, Positions)
        assert list(asked.lost("shop")) == [replica.schema.table]

    replica.generation, replica.destination = 2, successor
    replica.copy(2, BOB)
    replica.apply(replica.wire().insert(CAT).take())
    assert open_("shop").lost("shop") == {}
    if successor.lands:
        successor.merge("shop", replica.schema.table, in_threads, lambda: False)
    if KIND not in (names := DeltaTable(place).schema().to_arrow().names):
        assert [row[:2] for row in sorted(rows_of(place))] == [(2, "Bob"), (3, "Cat")]
    assert {"id", "name", "note"} <= set(names)


def test_what_others_may_do_to_a_table(replica: Replica, place: Path, open_: Open) -> None:
    table = DeltaTable(place)
    table.optimize.compact()
    table.delete("id = 7")
    write_deltalake(place, DeltaTable(place).to_pyarrow_table().slice(0, 0), mode="append")
    table.vacuum(dry_run=False)
    assert open_("shop").lost("shop") == {}
    replica.apply(replica.wire().insert(CAT).take())
