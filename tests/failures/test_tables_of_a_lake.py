"""What is wrong with one table of a lake ends that table, at once and with a remedy; the others go on."""

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.engine.destinations.delta.reading import rows_of
from tests.failures.pipeline import PipelineUnderTest

pytestmark = pytest.mark.servers


@pytest.fixture
def lake(shop: PipelineUnderTest) -> PipelineUnderTest:
    shop.place = f'type = "delta"\nuri = "{shop.folder}/lake"'
    return shop


def place(shop: PipelineUnderTest, table: str) -> Path:
    return shop.folder / "lake" / "public" / table


def test_columns_that_differ_in_case_alone(lake: PipelineUnderTest) -> None:
    lake.source.execute('alter table items add "What" int')
    problem = "public.items has a column What beside what: Delta tells no names apart by their case."
    checked = lake.pgetl("check")
    assert checked.code == 4, checked
    assert problem in checked.out
    said = lake.catch_up()
    assert said.code == 4, said
    assert lake.phases() == {"public.items": "Errored", "public.orders": "Ready"}
    lake.declared = ("public.orders",)
    lake.more = '[[table]]\nname = "public.items"\ncolumns = ["id", "what"]'
    lake.catch_up().assert_well()
    assert len(rows_of(place(lake, "items"))) == 50


def test_a_file_of_a_table_is_gone(lake: PipelineUnderTest) -> None:
    lake.catch_up().assert_well()
    for path in place(lake, "items").rglob("*.parquet"):
        path.unlink()
    lake.change_something()
    said = lake.catch_up()
    assert said.code == 4, said
    assert "`pgetl reset FILE TABLE`" in said.out + said.err
    assert lake.phases() == {"public.items": "Errored", "public.orders": "Ready"}
    lake.pgetl("reset", "public.items").assert_well()
    lake.catch_up().assert_well()
    assert sorted(rows_of(place(lake, "items"))) == sorted(lake.source.execute("select id, what from items"))


@pytest.mark.slow
def test_a_table_beside_which_changes_land_is_restored_without_its_landing(lake: PipelineUnderTest) -> None:
    """What was merged since the backup is not in the landing any more."""
    lake.destination_options = 'merge = "spark"'
    lake.catch_up().assert_well()
    shutil.copytree(place(lake, "items"), lake.folder / "backup")
    lake.change_something()
    lake.catch_up().assert_well()
    shutil.rmtree(place(lake, "items"))
    shutil.copytree(lake.folder / "backup", place(lake, "items"))
    lake.change_something()
    said = lake.catch_up()
    assert said.code == 3, said
    assert "it was restored (public.items)" in said.complaint
    lake.pgetl("reset", "public.items").assert_well()
    lake.catch_up().assert_well()
    assert sorted(rows_of(place(lake, "items"))) == sorted(lake.source.execute("select id, what from items"))


def test_a_table_that_others_restore_to_an_earlier_version_under_a_run(lake: PipelineUnderTest) -> None:
    """Its position in the log is as it was. No change comes to it."""
    lake.environment["TEST_WATCH_SECONDS"] = "1"
    lake.catch_up().assert_well()
    lake.change_something()
    with lake.follow() as run:
        run.until(lambda: len(rows_of(place(lake, "items"))) == 51, "the change has arrived")
        DeltaTable(place(lake, "items")).restore(0)
        run.until(lambda: lake.phases()["public.items"] == "Errored", "it was noticed")
        assert lake.phases()["public.orders"] == "Ready"
        run.stop()
    assert "(RESTORE)" in lake.catch_up().complaint
    lake.pgetl("reset", "public.items").assert_well()
    lake.catch_up().assert_well()
    assert sorted(rows_of(place(lake, "items"))) == sorted(lake.source.execute("select id, what from items"))


def test_a_commit_of_a_tables_log_is_gone(lake: PipelineUnderTest) -> None:
    """It cannot be copied over either, as long as the rest is there."""
    lake.catch_up().assert_well()
    log = place(lake, "items") / "_delta_log"
    max(log.glob("*.json")).write_bytes(bytes(300))
    lake.change_something()
    said = lake.catch_up()
    assert said.code == 4, said
    assert "remove its folder; then copy the table again: `pgetl reset " in said.complaint
    lake.pgetl("reset", "public.items").assert_well()
    assert "remove its folder" in lake.catch_up().complaint
    assert lake.phases() == {"public.items": "Errored", "public.orders": "Ready"}
    assert sorted(rows_of(place(lake, "orders"))) == sorted(lake.source.execute("select * from orders"))
    shutil.rmtree(place(lake, "items"))
    lake.pgetl("reset", "public.items").assert_well()
    lake.catch_up().assert_well()
    assert sorted(rows_of(place(lake, "items"))) == sorted(lake.source.execute("select id, what from items"))
