"""Tables of a lake are to be something else than they were: they are copied anew, and no history is lost by the way."""

from collections import Counter
from pathlib import Path

import pytest

from tests.engine.destinations.delta.reading import rows_of
from tests.failures.pipeline import ITEMS, PipelineUnderTest

pytestmark = pytest.mark.servers

HOLDS = (
    'public.items in the destination holds the entries of a history, which mode = "upsert" does not keep: '
    "a copy would replace them."
)


@pytest.fixture
def lake(shop: PipelineUnderTest) -> PipelineUnderTest:
    """Items are in it, as they are."""
    shop.place = f'type = "delta"\nuri = "{shop.folder}/lake"'
    shop.declared, shop.tables = ("public.items",), (ITEMS,)
    shop.catch_up().assert_well()
    return shop


def place(shop: PipelineUnderTest) -> Path:
    return shop.folder / "lake" / "public" / "items"


def assert_becomes(shop: PipelineUnderTest, mode: str) -> None:
    shop.destination_options += f'\nmode = "{mode}"'
    checked = shop.pgetl("check")
    assert checked.code == 0, checked
    assert "public.items will be copied anew: `mode` of it changed." in checked.out
    said = shop.catch_up()
    assert said.code == 0, said
    assert said.out.count("public.items is copied anew: `mode` of it changed.") == 1
    assert "copied anew" not in shop.pgetl("check").out


def kinds(shop: PipelineUnderTest) -> Counter[str]:
    return Counter(row[0] for row in rows_of(place(shop)))


def test_a_history_begins_with_what_is_there_and_never_goes_unasked(lake: PipelineUnderTest) -> None:
    assert_becomes(lake, "history")
    lake.source.execute("update items set what = 'news' where id <= 3")
    lake.catch_up().assert_well()
    entries = {"snapshot": 50, "update": 3}
    assert kinds(lake) == entries

    lake.destination_options = 'mode = "upsert"'
    for said in (lake.pgetl("check"), lake.catch_up()):
        assert said.code == 3, said
        assert HOLDS in said.out + said.err
    assert kinds(lake) == entries

    lake.destination_options = 'mode = "history"'
    assert "copied anew" not in lake.catch_up().out, "nothing has been begun"
    assert kinds(lake) == entries

    lake.destination_options = 'existing = "replace"'
    assert_becomes(lake, "upsert")
    assert sorted(rows_of(place(lake))) == sorted(lake.source.execute("select id, what from items"))


def test_nor_after_all_else_is_forgotten(lake: PipelineUnderTest) -> None:
    assert_becomes(lake, "history")
    lake.pgetl("destroy", "--yes").assert_well()
    lake.destination_options = ""
    said = lake.catch_up()
    assert said.code == 3, said
    assert HOLDS in said.complaint
