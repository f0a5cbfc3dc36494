"""Two pipelines, or a pipeline and a person, and one table in the destination: it is one pipeline's at a time, and the
other's table is Errored and says whose it is."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine.destinations.delta.reading import rows_of
from tests.failures.pipeline import ITEMS, ORDERS, PipelineUnderTest

pytestmark = pytest.mark.servers

REPLACED = "public.items in the destination is not this pipeline's any more: pipeline other has replaced it"
DROPPED = "public.orders was dropped in the destination."


@pytest.fixture
def lake(shop: PipelineUnderTest) -> PipelineUnderTest:
    shop.place = f'type = "delta"\nuri = "{shop.folder}/lake"'
    return shop


def place(shop: PipelineUnderTest, table: str) -> Path:
    return shop.folder / "lake" / "public" / table


def assert_arrived(shop: PipelineUnderTest, table: str) -> None:
    assert sorted(rows_of(place(shop, table))) == sorted(shop.source.execute(f"select * from {table}"))


def other_of(shop: PipelineUnderTest) -> PipelineUnderTest:
    """Another pipeline that replaces what is there."""
    folder = shop.folder / "other"
    folder.mkdir()
    return replace(
        shop,
        folder=folder,
        id="other",
        declared=("public.items",),
        tables=(ITEMS,),
        destination_options='existing = "replace"',
        started=[],
    )


def test_a_table_that_another_pipeline_replaces_under_a_run(shop: PipelineUnderTest) -> None:
    """A write finds it; a look finds it where there is nothing to write; a rollback does not take it back."""
    with shop.follow() as running:
        other = other_of(shop)
        other.catch_up()
        shop.source.execute("update items set what = 'newer' where id = 1")
        running.until(lambda: shop.phases().get("public.items") == "Errored", "the table was Errored")
        running.stop()
    other.close()
    assert REPLACED in shop.pgetl("status", "-v").out
    other.catch_up()
    other.assert_equal()
    shop.tables = (ORDERS,)
    said = shop.pgetl("rollback", "public.items")
    assert said.code == 0, said
    again = shop.catch_up()
    assert (again.code, "holds rows that pipeline other wrote" in again.out + again.err) == (3, True), again


def test_a_quiet_table_is_looked_at_as_well(followed: PipelineUnderTest) -> None:
    other = other_of(followed)
    other.catch_up()
    other.close()
    checked = followed.pgetl("check")
    assert REPLACED in checked.out, checked
    said = followed.catch_up()
    assert (said.code, followed.phases()["public.items"]) == (4, "Errored"), said


def test_a_table_of_a_lake_that_another_pipeline_replaces_under_a_run(lake: PipelineUnderTest) -> None:
    """And one whose folder is deleted."""

    def errored(table: str) -> Callable[[], bool]:
        return lambda: lake.phases().get(table) == "Errored"

    with lake.follow() as running:
        other = other_of(lake)
        other.catch_up()
        lake.source.execute("update items set what = 'newer' where id = 1")
        running.until(errored("public.items"), "the table was Errored")
        shutil.rmtree(place(lake, "orders"))
        lake.source.execute("update orders set note = 'newer' where id = 1")
        running.until(errored("public.orders"), "the table was Errored")
        running.stop()
    other.close()
    told = lake.pgetl("status", "-v").out
    assert REPLACED in told
    assert DROPPED in told
    other.catch_up().assert_well()
    assert_arrived(lake, "items")


@pytest.mark.slow
def test_a_quiet_table_of_a_lake_is_looked_at_as_well(lake: PipelineUnderTest) -> None:
    lake.catch_up().assert_well()
    other = other_of(lake)
    other.catch_up()
    other.close()
    shutil.rmtree(place(lake, "orders"))
    checked = lake.pgetl("check")
    assert REPLACED in checked.out, checked
    assert DROPPED in checked.out
    said = lake.catch_up()
    assert said.code == 4, said
    assert lake.phases() == {"public.items": "Errored", "public.orders": "Errored"}
    lake.pgetl("reset", "public.orders").assert_well()
    said = lake.catch_up()
    assert said.code == 4, said
    assert_arrived(lake, "orders")


def test_names_that_postgres_cuts_alike(shop: PipelineUnderTest) -> None:
    long = "n" * 63
    shop.declared = ()
    shop.more = "".join(
        f"[[table]]\nname = 'public.{name}'\ndestination = 'public.{long}{name}'\n" for name in ("items", "orders")
    )
    for verb in (("check",), ("run", "--until", "caught-up")):
        said = shop.pgetl(*verb)
        assert said.code == 3, said
        assert "has a name of more than 63 bytes" in said.out + said.err


def test_names_that_differ_in_case_alone_in_a_lake(shop: PipelineUnderTest) -> None:
    shop.place = f'type = "delta"\nuri = "{shop.folder}/lake"'
    shop.declared = ("public.items",)
    shop.more = "[[table]]\nname = 'public.orders'\ndestination = 'public.Items'\n"
    said = shop.pgetl("check")
    assert said.code == 3, said
    assert "names that differ in case alone" in said.out
