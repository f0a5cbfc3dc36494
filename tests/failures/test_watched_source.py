"""What a run is followed by is exchanged while it runs: the tables concerned are Errored and say why; others go on."""

import os
from pathlib import Path

import psycopg
import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases, Server
from tests.failures.pipeline import BOTH, PipelineUnderTest
from tests.shop import ShopTable

pytestmark = pytest.mark.servers

NAMES = ("replaced", "left", "put_back", "dropped", "filtered", "exchanged")
MORE = tuple(ShopTable(f"public.{name}", f"create table public.{name} (id int primary key)") for name in NAMES)


@pytest.fixture
def watched(shop: PipelineUnderTest) -> PipelineUnderTest:
    shop.environment["TEST_WATCH_SECONDS"] = "0.1"
    return shop


def reasons(shop: PipelineUnderTest) -> dict[str, str]:
    """Of the tables that are Errored."""
    statement = """select t.table_name, h.phase ->> 'reason'
                   from pgetl.tables t join pgetl.history h using (pipeline, table_schema, table_name)
                   where h.entry = t.current and h.phase ->> 'phase' = 'Errored'"""
    return dict(shop.state.execute(statement))


def test_tables_are_exchanged_under_a_run(watched: PipelineUnderTest) -> None:
    shop = watched
    shop.tables, shop.declared = (*BOTH, *MORE), ("public.*",)
    for table in MORE:
        shop.source.execute(table.create)
    with shop.follow() as run:
        with shop.source.connect() as session:
            session.execute("drop table replaced; create table replaced (id int primary key)")
            session.execute("alter publication pgetl_shop add table replaced")
            session.execute('alter publication pgetl_shop drop table "left"')
            # Each pair in one transaction, so that no look falls in between.
            session.execute(
                "alter publication pgetl_shop drop table put_back; alter publication pgetl_shop add table put_back"
            )
            session.execute("drop table dropped")
            session.execute(
                "alter publication pgetl_shop drop table filtered; "
                "alter publication pgetl_shop add table filtered where (id > 5)"
            )
            session.execute("alter table exchanged rename to put_away; create table exchanged (id int primary key)")
        run.until(lambda: len(reasons(shop)) == len(NAMES), "all of them were Errored")
        assert reasons(shop) == {
            name: f"Changes may be missing: {why}."
            for name, why in {
                "replaced": "it was dropped and created again at the source",
                "left": "it is not published any more",
                "put_back": "it was taken out of the publication",
                "dropped": "it was dropped at the source",
                "filtered": "it was taken out of the publication",
                "exchanged": "it was renamed to public.put_away at the source, and another table has its name",
            }.items()
        }
        shop.change_something()
        run.until(shop.arrives("select 1 from items where what = 'later'"), "others went on")
        run.stop()
    for name in NAMES:
        shop.pgetl("reset", f"public.{name}").assert_well()
    shop.tables = tuple(table for table in shop.tables if table.name != "public.dropped")
    shop.assert_nothing_lost()


def test_exchanged_tables_are_copied_again_by_themselves_where_that_is_declared(watched: PipelineUnderTest) -> None:
    """The run goes on with the others. One that was dropped stays as it is, and one that was renamed alone goes on."""
    shop = watched
    renamed = ShopTable("public.renamed", "create table public.renamed (id int primary key)")
    shop.tables, shop.declared = (*BOTH, *MORE, renamed), ()
    shop.more = '[[table]]\nname = "public.*"\nresync = "on_incompatible_change"'
    for table in (*MORE, renamed):
        shop.source.execute(table.create)
    with shop.follow() as run:
        with shop.source.connect() as session:
            session.execute("drop table replaced; create table replaced (id int primary key, more text)")
            session.execute("insert into replaced values (1, 'new')")
            session.execute('alter publication pgetl_shop drop table "left"; insert into "left" values (1)')
            session.execute("drop table dropped")
            session.execute("create schema elsewhere; alter table renamed set schema elsewhere")
            session.execute("alter table exchanged rename to put_away; create table exchanged (id int primary key)")
            session.execute("insert into exchanged values (1), (2); insert into elsewhere.renamed values (3)")
        again = ("replaced", "left", "exchanged")
        run.until(lambda: all(shop.copies(f"public.{name}") == 2 for name in again), "they are copied again")
        run.until(lambda: set(reasons(shop)) == {"dropped"}, "only the one that is gone is Errored")
        run.until(lambda: set(shop.phases().values()) == {"Ready", "Errored"}, "they are Ready again")
        shop.source.execute("update replaced set more = 'later'; insert into exchanged values (3)")
        shop.change_something()
        run.until(shop.arrives("select 1 from items where what = 'later'"), "others went on")
        run.until(shop.arrives("select 1 from replaced where more = 'later'"), "and these")
        run.until(shop.arrives("select 1 from exchanged where id = 3"), "and these")
        run.until(shop.arrives("select 1 from renamed where id = 3"), "a name is only a name")
        run.stop()
    assert reasons(shop) == {"dropped": "Changes may be missing: it was dropped at the source."}
    assert [shop.copies(table.name) for table in (*BOTH, renamed)] == [1, 1, 1]
    shop.assert_equal([*BOTH, *(table for table in MORE if table.table.name in again)])


@pytest.mark.parametrize("sent", ["for all tables", "for tables in schema public", None])
def test_a_table_becomes_a_partition_of_another_that_is_sent(watched: PipelineUnderTest, sent: str | None) -> None:
    """From then on the source sends its changes under the other's name. That they go on otherwise is not enough."""
    shop = watched
    shop.source.execute("create table whole (id int primary key, note text, amount int) partition by range (id)")
    if sent is None:
        shop.declared = (*shop.declared, "public.whole")
    else:
        shop.source.execute(f"create publication theirs {sent} with (publish_via_partition_root = true)")
        shop.source_options = 'publication = "theirs"\nmanage_publication = false\non_slot_lost = "resync"'
    with shop.follow() as run:
        shop.source.execute("alter table whole attach partition orders for values from (0) to (100000)")
        shop.change_something()
        run.until(lambda: "orders" in reasons(shop), "it was Errored")
        assert "it became a partition of public.whole at the source" in reasons(shop)["orders"]
        run.until(shop.arrives("select 1 from items where what = 'later'"), "the other went on")
        run.stop()
    assert "Declare public.whole" in shop.catch_up().complaint
    shop.declared = ("public.whole", "public.items")
    if sent is None:
        shop.pgetl("reset", "public.whole").assert_well()
    shop.catch_up().assert_well()
    statement = "select * from whole order by id"
    assert shop.destination.execute(statement) == shop.source.execute(statement)


@pytest.mark.slow
def test_a_publication_of_all_tables_is_made_again_under_a_run(watched: PipelineUnderTest) -> None:
    """No table is named in it, so that only the publication's own OID tells."""
    shop = watched
    shop.source.execute("create publication theirs for all tables")
    shop.source_options = 'publication = "theirs"\nmanage_publication = false'
    with shop.follow() as run:
        shop.source.execute("begin; drop publication theirs; create publication theirs for all tables; commit")
        run.until(lambda: len(reasons(shop)) == len(BOTH), "both were Errored")
        assert set(reasons(shop).values()) == {"Changes may be missing: it was taken out of the publication."}
        run.stop()
    assert "the publication was dropped and made again" in shop.catch_up().complaint


@pytest.mark.slow
def test_a_publication_is_told_to_leave_deletes_out(watched: PipelineUnderTest) -> None:
    """Under `resync` the run begins anew by itself."""
    shop = watched
    shop.source_options = 'on_slot_lost = "resync"'
    with shop.follow() as run:
        shop.source.execute("alter publication pgetl_shop set (publish = 'insert, update, truncate')")
        shop.change_something()
        run.until_said("does not send delete any more")
        run.until(lambda: "delete" in published(shop), "the publication was put right")
        run.until(lambda: run.said.out.count("public.orders: Ready") == 2, "the table was copied again")
        run.stop().assert_well()
    shop.assert_nothing_lost()


_NARROWED_FOR_A_WHILE = """
begin;
alter publication pgetl_shop set (publish = 'insert');
update items set what = 'unseen';
alter publication pgetl_shop set (publish = 'delete, insert, truncate, update');
commit
"""


def test_a_publication_that_was_narrowed_between_two_looks(watched: PipelineUnderTest) -> None:
    """It is as it was before, and an update was not sent: only that its row was written anew tells."""
    shop = watched
    altered = "the publication pgetl_shop was altered, and may have left out changes for a while"
    with shop.follow() as run:
        shop.source.execute(_NARROWED_FOR_A_WHILE)
        run.until(lambda: len(reasons(shop)) == len(BOTH), "both were Errored")
        assert set(reasons(shop).values()) == {f"Changes may be missing: {altered}."}
        for table in BOTH:
            shop.pgetl("reset", table.name).assert_well()
        run.until(lambda: run.said.out.count(": Ready") == 2 * len(BOTH), "both were copied again by the same run")
        run.stop().assert_well()
    shop.catch_up().assert_well()
    shop.assert_nothing_lost()
    shop.source.execute(_NARROWED_FOR_A_WHILE.replace("unseen", "unseen again"))
    assert altered in shop.catch_up().complaint
    for table in BOTH:
        shop.pgetl("reset", table.name).assert_well()
    shop.catch_up().assert_well()
    shop.assert_nothing_lost()


@pytest.mark.parametrize("watched_seconds", ["0.1", "1000"], ids=["looked at meanwhile", "not looked at"])
def test_a_publication_that_was_narrowed_while_a_table_was_copied(
    shop: PipelineUnderTest, watched_seconds: str
) -> None:
    """The looks pass over what is copied: it is the copy that says by which row of the publication it was sent."""
    shop.environment["TEST_WATCH_SECONDS"] = watched_seconds
    shop.source.execute("insert into items select n, repeat('x', 300) from generate_series(1000, 40000) n")
    with shop.start("run", "--until", "caught-up") as run:
        run.until(lambda: len(shop.slots("and confirmed_flush_lsn is not null")) == 2, "the slot of the copy was made")
        shop.source.execute(_NARROWED_FOR_A_WHILE)
        assert shop.phases()["public.items"] == "DataSync"
        run.wait()
    if set(shop.phases().values()) == {"Ready"}:
        assert "was altered" in shop.catch_up().complaint
    for table in BOTH:
        shop.pgetl("reset", table.name).assert_well()
    shop.catch_up().assert_well()
    shop.assert_nothing_lost()


def test_a_publication_that_was_narrowed_while_a_table_was_errored(watched: PipelineUnderTest) -> None:
    """Its group's slot has everything but what the publication left out: from there the table may not go on."""
    shop = watched
    shop.catch_up().assert_well()
    shop.destination.execute("alter table items add constraint short check (what not like 'long%')")
    shop.source.execute("insert into items select n, repeat('x', 300) from generate_series(1000, 20000) n")
    shop.pgetl("reset", "public.items").assert_well()
    with shop.start("run") as run:
        run.until(lambda: len(shop.slots("and confirmed_flush_lsn is not null")) == 2, "the slot of the copy was made")
        shop.source.execute("update items set what = 'long' where id = 1")
        run.until(lambda: "items" in reasons(shop), "it was Errored")
        shop.source.execute(_NARROWED_FOR_A_WHILE)
        shop.source.execute("update items set what = 'short' where id = 1")
        shop.destination.execute("alter table items drop constraint short")
        shop.pgetl("rollback", "public.items").assert_well()
        run.until(lambda: "was altered" in reasons(shop).get("items", ""), "it was Errored for that")
        run.stop()
    for table in BOTH:
        shop.pgetl("reset", table.name).assert_well()
    shop.catch_up().assert_well()
    shop.assert_nothing_lost()


def test_a_publication_that_is_given_to_another_owner(watched: PipelineUnderTest) -> None:
    """Which writes its row anew, too. What comes of its options after that counts again."""
    shop = watched
    owner = f"owner_{os.getpid()}"
    shop.source.execute(f"create role {owner} superuser")
    try:
        with shop.follow() as run:
            shop.source.execute(f"alter publication pgetl_shop owner to {owner}")
            shop.change_something()
            run.until(shop.arrives("select 1 from items where what = 'later'"), "all went on")
            run.stop().assert_well()
        shop.catch_up().assert_well()
        shop.source.execute(f"alter role {owner} rename to {owner}_by_now")
        shop.source.execute(_NARROWED_FOR_A_WHILE)
        assert "was altered" in shop.catch_up().complaint
    finally:
        shop.source.execute("alter publication pgetl_shop owner to postgres")
        shop.source.execute(f"drop role if exists {owner}, {owner}_by_now")


def test_a_table_is_added_to_the_publication_of_inserts_too(watched: PipelineUnderTest) -> None:
    """The other one sends its updates and deletes as before."""
    shop = watched
    with shop.follow() as run:
        shop.source.execute("alter publication pgetl_shop_inserts add table orders")
        shop.change_something()
        run.until(shop.arrives("select 1 from items where what = 'later'"), "all went on")
        run.stop().assert_well()
    shop.catch_up().assert_well()
    shop.assert_nothing_lost()
    assert shop.copies("public.orders") == 1


def published(shop: PipelineUnderTest) -> list[str]:
    ((deletes,),) = shop.source.execute("select pubdelete from pg_publication where pubname = 'pgetl_shop'")
    return ["delete"] if deletes else []


def test_a_column_that_makes_updates_fail_at_the_source_is_warned_of(
    server18: Server, state_database: Database, tmp_path: Path
) -> None:
    databases = Databases(*(server18.create_database(f"virtual_{os.getpid()}_{side}") for side in ("from", "to")))
    shop = PipelineUnderTest(databases, state_database, tmp_path)
    shop.environment["TEST_WATCH_SECONDS"] = "0.1"
    shop.fill()
    shop.source.execute("alter table items replica identity full")
    with shop.follow() as run:
        shop.source.execute("alter table items add column total int generated always as (id * 2) virtual")
        with pytest.raises(psycopg.errors.DatabaseError, match="cannot update table"):
            shop.source.execute("update items set what = 'x' where id = 1")
        run.until_said(
            "public.items has replica identity full and the virtual column total, which cannot be published: its "
            "UPDATE and DELETE fail at the source. Drop the column, or choose an index as its replica identity."
        )
        run.stop().assert_well()
    for database in databases:
        server18.drop_database(database.name)
