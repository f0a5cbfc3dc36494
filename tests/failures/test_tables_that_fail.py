"""Something is wrong with one table. It alone is set aside, with the reason and the way back, and the others go on;
the way back leads to a table that is equal again."""

import re
from pathlib import Path

import pytest

from tests.engine.destinations.delta.reading import rows_of
from tests.failures.pipeline import BOTH, ITEMS, ORDERS, PipelineUnderTest, Said
from tests.shop import ShopTable
from tests.trade import Truncates

pytestmark = pytest.mark.servers

REWRITTEN = (
    "public.orders: Errored: public.orders was rewritten after the copy's snapshot was taken. "
    "It is copied again by itself; nothing has to be done."
)
ERRORS = (Path(__file__).parents[2] / "docs" / "how-to" / "errors.md").read_text(encoding="utf-8")
[QUERY] = re.findall(r"^```sql\n(.*?)^```", ERRORS, re.MULTILINE | re.DOTALL)
COLOURED = ("alter table items add column colour text", "insert into items values (7000, 'x', 'red')")
CODED = ("alter table items add column code text default gen_random_uuid()", COLOURED[1])


def set_aside(shop: PipelineUnderTest, table: str, *statements: str) -> Said:
    """While a run follows, the statements at the source; the table is Errored, and the others go on. The run ends."""
    with shop.follow() as run:
        for statement in statements:
            shop.source.execute(statement)
        run.until(lambda: shop.phases()[table] == "Errored", f"{table} was set aside")
        shop.source.execute("update orders set note = 'after' where id = 7")
        run.until(shop.arrives("select 1 from orders where note = 'after'"), "the others go on")
        return run.stop()


def assert_told(shop: PipelineUnderTest, table: str, reason: str, remedy: str) -> None:
    """By a run that goes to its end, by its exit code, and by `status`."""
    said = shop.catch_up()
    assert said.code == 4
    assert said.complaint == f"{table} is Errored: {reason} {remedy}"
    assert said.out.endswith("Done, but for the tables that are Errored.\n")
    status = shop.pgetl("status")
    assert re.search(f"^{table} .* Errored: {re.escape(reason)}", status.out, re.MULTILINE)


def test_a_value_that_the_destination_refuses(followed: PipelineUnderTest) -> None:
    followed.destination.execute("alter table items add constraint short check (length(what) < 100)")
    said = set_aside(followed, "public.items", "insert into items values (7000, repeat('x', 200))")
    assert said.code == 0  # it was stopped
    said.assert_presentable()
    assert_told(
        followed,
        "public.items",
        "The destination refused a write to public.items: "
        'new row for relation "items" violates check constraint "short".',
        "Drop or relax the destination's constraint, then roll the table back "
        f"(`pgetl rollback {followed.file} public.items`).",
    )
    [row] = followed.state.execute(QUERY)
    assert row[:3] == ("shop", "public", "items")
    assert str(row[4]).startswith("The destination refused a write to public.items")
    assert str(row[5]).startswith("Drop or relax")
    followed.destination.execute("alter table items drop constraint short")
    followed.pgetl("rollback", "public.items").assert_well()
    followed.assert_nothing_lost()


def test_rolled_back_before_it_is_settled_it_is_set_aside_again(followed: PipelineUnderTest) -> None:
    """Already by the copy; so the table stays as it was."""
    followed.destination.execute("alter table items add constraint short check (length(what) < 100)")
    set_aside(followed, "public.items", "insert into items values (7000, repeat('x', 200))")
    followed.pgetl("rollback", "public.items").assert_well()
    said = followed.catch_up()
    assert said.code == 4
    assert 'violates check constraint "short"' in said.complaint
    assert followed.rows("items") == 50
    followed.destination.execute("alter table items drop constraint short")
    followed.pgetl("rollback", "public.items").assert_well()
    followed.assert_nothing_lost()


def test_a_column_that_was_added_with_a_value_of_its_own_in_each_row(followed: PipelineUnderTest) -> None:
    set_aside(followed, "public.items", *CODED)
    assert_told(
        followed,
        "public.items",
        "public.items was changed at the source since it was copied: code was added (what existing rows have in code "
        "is not in the WAL).",
        f"Copy the table again: `pgetl reset {followed.file} public.items`. "
        "If pgetl did not make the destination's table, change its columns alike first.",
    )
    followed.pgetl("reset", "public.items").assert_well()
    followed.assert_nothing_lost()
    assert followed.destination.execute("select code from items where id = 7000") == [("red",)]


def test_a_column_that_was_added_where_the_destinations_table_is_somebody_elses(shop: PipelineUnderTest) -> None:
    shop.destination.execute("create table items (id int primary key, what text, mine int default 3)")
    shop.tables = (ShopTable(ITEMS.name, "", columns=("id", "what")), ORDERS)
    shop.catch_up().assert_well()
    set_aside(shop, "public.items", *COLOURED)
    said = shop.catch_up()
    assert "pgetl did not create public.items in the destination, which has no column colour" in said.complaint
    shop.destination.execute("alter table items add column colour text")
    shop.pgetl("reset", "public.items").assert_well()
    shop.tables = (ShopTable(ITEMS.name, "", columns=("id", "what", "colour")), ORDERS)
    shop.assert_nothing_lost()


def test_a_column_that_was_added_to_somebody_elses_table_as_well(shop: PipelineUnderTest) -> None:
    shop.destination.execute("create table items (id int primary key, what text, mine int default 3)")
    shop.catch_up().assert_well()
    shop.destination.execute("alter table items add column colour varchar(10)")
    for statement in COLOURED:
        shop.source.execute(statement)
    shop.tables = (ShopTable(ITEMS.name, "", columns=("id", "what", "colour")), ORDERS)
    shop.assert_nothing_lost()
    assert shop.copies("public.items") == 1


def test_a_label_that_an_enum_has_gained(shop: PipelineUnderTest) -> None:
    """Postgres sends no word of it; the value says so."""
    shop.source.execute("create type mood as enum ('sad', 'ok'); create table moods (id int primary key, mood mood)")
    shop.source.execute("insert into moods values (1, 'sad')")
    shop.declared = (*shop.declared, "public.moods")
    shop.tables = (*BOTH, ShopTable("public.moods", ""))
    shop.catch_up().assert_well()
    set_aside(
        shop, "public.moods", "alter type mood add value 'happy' before 'ok'", "insert into moods values (2, 'happy')"
    )
    assert_told(
        shop,
        "public.moods",
        'The destination refused a write to public.moods: invalid input value for enum public.mood: "happy".',
        "Roll the table back: its copy brings the labels that an enum has gained at the source. "
        f"Then `pgetl rollback {shop.file} public.moods`.",
    )
    shop.pgetl("rollback", "public.moods").assert_well()
    shop.assert_nothing_lost()
    assert shop.destination.execute("select enum_range(null::mood)::text") == [("{sad,happy,ok}",)]


@pytest.mark.slow
def test_a_table_that_is_rewritten_while_it_is_copied_is_copied_again_by_itself(shop: PipelineUnderTest) -> None:
    """Rows could vanish from the snapshot unnoticed. The table waits, is rolled back by the clock, and copied."""
    shop.source.execute("insert into orders select n, repeat('x', 500), n from generate_series(1000, 3500) n")
    with shop.start("run") as run:
        run.until_said("public.orders: copied 0%")
        shop.source.execute("vacuum full orders")
        run.until_said(REWRITTEN)
        run.until(lambda: set(shop.phases().values()) == {"Ready"}, "all tables were Ready")
        said = run.stop()
    said.assert_well()
    shop.assert_nothing_lost()


def test_a_bounded_run_waits_for_it(shop: PipelineUnderTest) -> None:
    """Copied once more, and no oftener."""
    shop.source.execute("insert into orders select n, repeat('x', 500), n from generate_series(1000, 3500) n")
    with shop.start("run", "--until", "caught-up") as run:
        run.until_said("public.orders: copied 0%")
        shop.source.execute("vacuum full orders")
        said = run.wait()
    said.assert_well()
    assert said.out.count(REWRITTEN) == 1
    assert shop.copies("public.orders") == 2
    shop.assert_nothing_lost()


# -- a table that is emptied again and again, as staging tables are, is copied once, and followed like any other -------


def run_while_it_is_truncated(shop: PipelineUnderTest) -> None:
    """From before its first row is copied until all tables are Ready, and a little longer."""
    shop.source.execute("insert into orders select n, repeat('x', 500), n from generate_series(1000, 3500) n")
    with shop.start("run") as run:
        run.until_said("public.orders: copied 0%")
        with Truncates(shop.source, "public.orders"):
            run.until(lambda: set(shop.phases().values()) == {"Ready"}, "all tables were Ready")
            shop.source.execute("update items set what = 'after' where id = 7")
        run.stop().assert_well()
    assert shop.copies("public.orders") == 1
    shop.change_something()
    shop.catch_up().assert_well()


def test_it_is_copied_once(shop: PipelineUnderTest) -> None:
    run_while_it_is_truncated(shop)
    shop.assert_equal()
    shop.assert_nothing_lost()


def test_it_is_copied_once_to_a_lake(shop: PipelineUnderTest) -> None:
    lake = shop.folder / "lake"
    shop.place = f'type = "delta"\nuri = "{lake}"'
    run_while_it_is_truncated(shop)
    for table, columns in (("orders", "id, note, amount"), ("items", "id, what")):
        there = sorted(rows_of(lake / "public" / table), key=repr)
        assert there == sorted(shop.source.execute(f"select {columns} from {table}"), key=repr)


# -- coordination costs the tables that changed, not all there are -----------------------------------------------------


TABLES = 60

_READ = """
select pg_stat_clear_snapshot(), sum(seq_tup_read + idx_tup_fetch)::int8
from pg_stat_user_tables where relname = 'table_schemas'
"""


def test_many_tables_are_told_of_together(shop: PipelineUnderTest) -> None:
    """If each event of each table read all schemas again, it would be some hundred times as many."""
    for number in range(TABLES):
        shop.source.execute(f"create table t{number} (id int primary key); insert into t{number} values (1)")
    shop.declared = ("public.*",)
    shop.catch_up().assert_well()
    assert set(shop.phases().values()) == {"Ready"}
    ((changes,),) = shop.state.execute("select changes from pgetl.pipelines")
    assert changes < TABLES
    ((_, read),) = shop.state.execute(_READ)
    assert read < 100 * TABLES
