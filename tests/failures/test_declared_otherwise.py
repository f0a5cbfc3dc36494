"""Something else is declared of a table than before: it alone is copied anew, which `check` announces and `run` says in
a line; no other table is touched, and nobody is asked."""

from dataclasses import replace

import pytest

from tests.failures.pipeline import ITEMS, ORDERS, PipelineUnderTest
from tests.shop import ShopTable

pytestmark = pytest.mark.servers


def declare(shop: PipelineUnderTest, items: ShopTable, *options: str) -> None:
    """Of items, and how it is to look in the destination then."""
    shop.declared, shop.tables = ("public.orders",), (items, ORDERS)
    shop.more = "\n".join(["[[table]]", 'name = "public.items"', *options])


def assert_copied_anew(shop: PipelineUnderTest, why: str) -> None:
    """That table alone, and only once."""
    shop.change_something()
    announced = shop.pgetl("check")
    assert announced.code == 0, announced
    assert f"public.items will be copied anew: {why}." in announced.out
    said = shop.catch_up()
    said.assert_well()
    assert said.out.count("is copied anew") == 1
    assert f"public.items is copied anew: {why}." in said.out
    assert "public.items: DataSync" in said.out
    assert "public.orders: DataSync" not in said.out
    shop.assert_equal()
    assert "copied anew" not in shop.pgetl("check").out
    assert_not_copied(shop)
    shop.assert_nothing_lost()


def assert_not_copied(shop: PipelineUnderTest) -> None:
    said = shop.catch_up()
    said.assert_well()
    assert "DataSync" not in said.out


SOME = replace(ITEMS, where="id > 20")


def test_a_row_filter_that_comes_and_changes_and_goes(followed: PipelineUnderTest) -> None:
    declare(followed, SOME, 'where = "id > 20"')
    assert_copied_anew(followed, "`where` of it changed")
    declare(followed, replace(ITEMS, where="id > 10"), 'where = "id > 10"')
    assert_copied_anew(followed, "`where` of it changed")
    declare(followed, ITEMS)
    assert_copied_anew(followed, "`where` of it changed")


@pytest.mark.slow
def test_a_column_list_that_comes_and_changes(followed: PipelineUnderTest) -> None:
    followed.source.execute("alter table items add more text default 'm'")
    followed.catch_up()
    declare(followed, replace(ITEMS, columns=("id", "what")), 'columns = ["id", "what"]')
    assert_copied_anew(followed, "`columns` of it changed")
    fewer = replace(ITEMS, columns=("id", "more"), where="id > 5")
    declare(followed, fewer, 'columns = ["id", "more"]', 'where = "id > 5"')
    assert_copied_anew(followed, "`columns` and `where` of it changed")


def test_the_same_in_other_words_is_no_change(shop: PipelineUnderTest) -> None:
    """Columns in another order, a filter in other words."""
    declare(shop, SOME, 'columns = ["id", "what"]', 'where = "id > 20"')
    shop.catch_up().assert_well()
    declare(shop, SOME, 'columns = ["what", "id"]', 'where = "(  id) > 20 "')
    shop.change_something()
    assert "copied anew" not in shop.pgetl("check").out
    assert_not_copied(shop)
    shop.assert_nothing_lost()


def test_a_column_that_is_renamed_is_no_change_of_the_declaration(shop: PipelineUnderTest) -> None:
    """The filter looks at it, and is spelled otherwise by the server from now on."""
    shop.declared, shop.tables = ("public.orders",), (SOME, ORDERS)
    shop.more = '[[table]]\nname = "public.items"\nwhere = "id > 20"\ninsert_only = true'
    shop.catch_up().assert_well()
    shop.source.execute("alter table items rename id to number")
    shop.more = shop.more.replace("id >", "number >")
    assert "copied anew" not in shop.pgetl("check").out


@pytest.mark.slow
def test_a_table_that_becomes_insert_only_and_back(followed: PipelineUnderTest) -> None:
    declare(followed, ITEMS, "insert_only = true")
    said = followed.catch_up()
    said.assert_well()
    assert "public.items is copied anew: `insert_only` of it changed." in said.out
    followed.source.execute("update items set what = 'not sent'")
    followed.catch_up().assert_well()
    declare(followed, ITEMS)
    assert_copied_anew(followed, "`insert_only` of it changed")


def test_another_place_in_the_destination(followed: PipelineUnderTest) -> None:
    """It is copied there; what was there before stays as it was, until the table comes back."""
    there = replace(ITEMS, destination="archive.items")
    declare(followed, there, 'destination = "archive.items"')
    why = "`destination` of it changed; it goes to {}, and {} stays as it is"
    assert_copied_anew(followed, why.format("archive.items", "public.items"))
    assert followed.rows("public.items") == 50
    declare(followed, ITEMS)
    assert_copied_anew(followed, why.format("public.items", "archive.items"))


def test_another_destination_behind_the_uri(followed: PipelineUnderTest) -> None:
    """It may be meant, or a mistake: nothing is copied into a database unasked that somebody else's may be."""
    server, name = followed.destination.server, f"{followed.destination.name}_elsewhere"
    elsewhere = server.create_database(name)
    followed.environment = {"PGETL_DESTINATION_URI": elsewhere.uri}
    for said in (followed.pgetl("check"), followed.catch_up()):
        assert said.code == 3
        assert "the destination does not know it any more (public.items, public.orders)" in said.out + said.err
    followed.source_options = 'on_slot_lost = "resync"'
    assert followed.catch_up().code == 0
    assert (followed.rows("items", elsewhere), followed.rows("items")) == (50, 50)
    server.drop_database(name)


@pytest.mark.slow
def test_two_tables_change_places(followed: PipelineUnderTest) -> None:
    """Each comes to where the other was, with a history of its own there."""
    for _ in range(3):
        followed.pgetl("reset", "public.orders").assert_well()
    followed.catch_up().assert_well()
    followed.declared = ("public.nothing_but_named_below",)
    followed.source.execute("create table nothing_but_named_below (id int primary key)")
    followed.tables = (replace(ITEMS, destination="public.orders"), replace(ORDERS, destination="public.items"))
    followed.more = (
        '[[table]]\nname = "public.items"\ndestination = "public.orders"\n'
        '[[table]]\nname = "public.orders"\ndestination = "public.items"'
    )
    followed.assert_nothing_lost()


def test_a_publication_of_somebody_elses_is_changed(shop: PipelineUnderTest) -> None:
    shop.source.execute("create publication theirs for table orders, items")
    shop.source_options = 'publication = "theirs"\nmanage_publication = false'
    shop.catch_up().assert_well()
    shop.source.execute("alter publication theirs set table orders, items where (id > 20)")
    shop.tables = (SOME, ORDERS)
    assert_copied_anew(shop, "`where` of it changed")
    shop.source.execute("alter publication theirs drop table items; alter publication theirs add table items (id)")
    shop.tables = (replace(ITEMS, columns=("id",)), ORDERS)
    assert_copied_anew(shop, "`columns` and `where` of it changed")


def test_taken_out_and_put_back_on_the_same_terms_is_a_gap(followed: PipelineUnderTest) -> None:
    """Nobody has asked for anything else: changes may be missing, and it is not passed over."""
    declare(followed, SOME, 'where = "id > 20"')
    followed.catch_up().assert_well()
    followed.source.execute("alter publication pgetl_shop drop table items")
    followed.source.execute("alter publication pgetl_shop add table items where (id > 20)")
    said = followed.catch_up()
    assert said.code == 3
    assert "Changes may be missing: it was taken out of the publication (public.items)." in said.complaint


def test_it_is_tried_again_when_what_made_it_fail_is_changed(shop: PipelineUnderTest) -> None:
    """A table that is Errored needs no word of a person, once something else is declared of it."""
    shop.destination.execute("create table items (id int primary key, what int)")
    said = shop.catch_up()
    assert said.code == 4, said
    assert shop.phases() == {"public.items": "Errored", "public.orders": "Ready"}
    declare(shop, replace(ITEMS, destination="archive.items"), 'destination = "archive.items"')
    shop.catch_up().assert_well()
    shop.assert_nothing_lost()
