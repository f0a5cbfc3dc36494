"""What is declared and what the source has do not go together: told with the line, before anything is touched.

And what is declared later, or no longer, is taken up with the next run, without touching the other tables.
"""

import pytest

from tests.failures.pipeline import ITEMS, ORDERS, PipelineUnderTest
from tests.shop import ShopTable

pytestmark = pytest.mark.servers


def assert_untouched(shop: PipelineUnderTest) -> None:
    assert (shop.publications(), shop.slots(), shop.phases()) == ([], [], {})


def test_a_table_that_is_not_there(shop: PipelineUnderTest) -> None:
    shop.declared = ("public.orders", "public.itmes")
    said = shop.catch_up()
    assert said.code == 2
    meant = "There is no table public.itmes in the source. Did you mean public.items?"
    assert said.complaint == f"{shop.file}:2: {meant}"
    assert_untouched(shop)
    shop.declared = ("public.orders", "public.items")
    shop.assert_nothing_lost()


def test_a_row_filter_that_the_server_cannot_read_is_told_with_table_and_line(shop: PipelineUnderTest) -> None:
    """Of two, the one that is wrong; by `check` in the same words."""
    shop.declared = ()
    shop.more = "".join(
        f"""[[table]]\nname = "public.{name}"\nwhere = "{where}"\n"""
        for name, where in (("orders", "id > 3"), ("items", "idd > 3"))
    )
    said = shop.catch_up()
    assert said.code == 3
    assert said.complaint == (
        f"{shop.file}:6: The row filter of public.items, 'idd > 3', cannot be used: "
        'column "idd" does not exist. Correct its `where`.'
    )
    assert_untouched(shop)
    checked = shop.pgetl("check")
    assert checked.code == 3
    assert said.complaint.replace(":6: ", ":6: error: ") in checked.out


def test_a_row_filter_is_one_expression_and_nothing_else(shop: PipelineUnderTest) -> None:
    shop.declared = ()
    shop.more = '[[table]]\nname = "public.items"\nwhere = "true); commit; drop table public.orders; --"'
    for verb in ("check", "run"):
        said = shop.pgetl(verb)
        assert said.code == 3, said
        assert "The row filter of public.items" in said.out + said.err
    assert_untouched(shop)
    assert shop.source.execute("select to_regclass('orders') is not null") == [(True,)]


def test_a_table_without_replica_identity(shop: PipelineUnderTest) -> None:
    shop.source.execute("alter table items drop constraint items_pkey")
    said = shop.catch_up()
    assert said.code == 3
    assert said.complaint == (
        f"{shop.file}:2: public.items has no usable replica identity: once published, its UPDATE and DELETE would fail "
        'at the source. Give it a primary key (not deferrable), or `ALTER TABLE "public"."items" REPLICA IDENTITY '
        "FULL`, or declare public.items with `insert_only = true`."
    )
    assert_untouched(shop)
    shop.change_something()  # the source's applications are not disturbed
    shop.source.execute('ALTER TABLE "public"."items" REPLICA IDENTITY FULL')
    shop.assert_nothing_lost()


def test_a_row_filter_that_would_make_statements_of_the_source_fail(shop: PipelineUnderTest) -> None:
    shop.declared = ("public.orders",)
    shop.more = """[[table]]\nname = "public.items"\nwhere = "what <> 'secret'" """
    said = shop.catch_up()
    assert said.code == 3
    assert said.complaint == (
        f"{shop.file}:3: The row filter of public.items looks at what, outside of its replica identity: its UPDATE and "
        'DELETE would fail at the source. Filter by identity columns, set `ALTER TABLE "public"."items" REPLICA '
        "IDENTITY FULL`, or use `insert_only`."
    )
    assert_untouched(shop)
    shop.change_something()
    shop.source.execute('ALTER TABLE "public"."items" REPLICA IDENTITY FULL')
    shop.tables = (ORDERS, ShopTable(ITEMS.name, "", where="what <> 'secret'"))
    shop.assert_nothing_lost()


def test_a_table_that_loses_its_replica_identity_later(followed: PipelineUnderTest) -> None:
    """Postgres lets it happen; the source's updates fail from then on, and the next run says why."""
    followed.source.execute("alter table items drop constraint items_pkey")
    said = followed.catch_up()
    assert said.code == 3
    assert "public.items has no usable replica identity" in said.complaint
    followed.source.execute("alter table items add primary key (id)")
    followed.assert_nothing_lost()


def test_a_table_that_is_declared_later_is_taken_up_alone(shop: PipelineUnderTest) -> None:
    shop.declared, shop.tables = ("public.orders",), (ORDERS,)
    shop.catch_up().assert_well()
    shop.change_something()
    shop.declared, shop.tables = ("public.orders", "public.items"), (ITEMS, ORDERS)
    said = shop.catch_up()
    said.assert_well()
    assert "public.items: DataSync" in said.out
    assert "public.orders: DataSync" not in said.out
    shop.assert_equal()
    shop.assert_nothing_lost()


def test_a_table_that_is_declared_no_longer_is_let_go_of_and_can_come_back(followed: PipelineUnderTest) -> None:
    followed.declared = ("public.orders",)
    followed.change_something()
    said = followed.catch_up()
    said.assert_well()
    assert "public.items is not declared any more; its data in the destination stays." in said.out
    followed.assert_equal([ORDERS])
    assert followed.phases() == {"public.orders": "Ready"}
    assert followed.rows("items") == 50
    followed.declared = ("public.orders", "public.items")
    said = followed.catch_up()
    said.assert_well()
    assert "public.orders: DataSync" not in said.out
    followed.assert_nothing_lost()


def test_a_table_that_was_dropped_at_the_source(followed: PipelineUnderTest) -> None:
    """It is an error, as it would be for a misspelt one; taken out of the file, the others go on."""
    followed.source.execute("drop table items")
    said = followed.catch_up()
    assert said.code == 2
    assert "There is no table public.items in the source." in said.complaint
    followed.declared = ("public.orders",)
    followed.source.execute("update orders set note = 'still here' where id = 7")
    followed.catch_up().assert_well()
    followed.assert_equal([ORDERS])
    assert followed.rows("items") == 50


def test_a_table_that_was_dropped_and_made_again(followed: PipelineUnderTest) -> None:
    followed.source.execute("drop table items; create table items (id int primary key, what text)")
    followed.source.execute("insert into items values (1, 'another')")
    said = followed.catch_up()
    assert said.code == 3
    assert said.complaint == (
        "Changes may be missing: it was dropped and created again at the source (public.items). If this is the right "
        f"source and destination, copy the tables again: `pgetl reset {followed.file} TABLE` for each, or set "
        'on_slot_lost = "resync".'
    )
    assert "Changes may be missing" in followed.pgetl("check").out
    followed.pgetl("reset", "public.items").assert_well()
    said = followed.catch_up()
    said.assert_well()
    assert "public.orders: DataSync" not in said.out
    followed.assert_nothing_lost()
