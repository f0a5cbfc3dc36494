"""Somebody has taken away what the stream went by. It is never passed over: it is said what is missing and for which
tables, nothing is changed, and either way out, `reset` or `resync`, leads to a destination that is equal again."""

import signal
import time
from collections.abc import Callable

import psycopg
import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Databases, Server
from tests.failures.pipeline import PipelineUnderTest, Running

pytestmark = pytest.mark.servers

WAYS_OUT = pytest.mark.parametrize("way_out", ["reset", pytest.param("resync", marks=pytest.mark.slow)])


def assert_refused(shop: PipelineUnderTest, why: str) -> None:
    """By `run` and by `check`, in the same words, again and again; nothing is changed by it."""
    before = shop.slots(), shop.publications(), shop.rows("orders")
    said = shop.catch_up()
    assert said.code == 3
    assert said.complaint == (
        f"Changes may be missing: {why} (public.items, public.orders). If this is the right source and destination, "
        f'copy the tables again: `pgetl reset {shop.file} TABLE` for each, or set on_slot_lost = "resync".'
    )
    checked = shop.pgetl("check")
    assert checked.code == 3
    assert said.complaint in checked.out
    assert (shop.slots(), shop.publications(), shop.rows("orders")) == before


def assert_put_right(shop: PipelineUnderTest, way_out: str) -> None:
    shop.change_something()
    if way_out == "resync":
        shop.source_options = 'on_slot_lost = "resync"'
        assert "warning: Changes may be missing" in shop.pgetl("check").out
        said = shop.catch_up()
        assert said.code == 0, said
        assert "public.items is copied again, for " in said.out
    else:
        shop.pgetl("reset", "public.items").assert_well()
        assert "(public.orders)" in shop.catch_up().complaint
        shop.pgetl("reset", "public.orders").assert_well()
    shop.assert_nothing_lost()


def drop_slot(shop: PipelineUnderTest) -> str:
    """Also one that is streamed from; whoever streams will not be quick enough to come back."""
    name = shop.apply_slot
    with shop.source.connect() as session:
        for _ in range(10_000):
            try:
                session.execute(
                    """select pg_terminate_backend(active_pid) from pg_replication_slots
                       where slot_name = %s and active""",
                    [name],
                )
                session.execute("select pg_drop_replication_slot(%s)", [name])
            except psycopg.errors.ObjectInUse:
                continue
            return name
    raise AssertionError("the slot could not be dropped")


def ends(run: Running) -> str:
    """With its complaint, promptly."""
    began = time.monotonic()
    said = run.wait(120)
    assert said.code == 3
    assert time.monotonic() - began < 45
    return said.complaint


# -- slots ------------------------------------------------------------------------------------------------------------


@WAYS_OUT
def test_the_slot_was_dropped(followed: PipelineUnderTest, way_out: str) -> None:
    slot = drop_slot(followed)
    followed.change_something()
    assert_refused(followed, f"the replication slot {slot} does not exist any more")
    assert_put_right(followed, way_out)


def test_the_slot_is_dropped_underneath_a_run(shop: PipelineUnderTest) -> None:
    with shop.follow() as run:
        slot = drop_slot(shop)
        complaint = ends(run)
    assert complaint.startswith(f"The replication slot {slot} does not exist. Reset the tables with `pgetl reset`")
    shop.change_something()
    assert_refused(shop, f"the replication slot {slot} does not exist any more")
    assert_put_right(shop, "reset")


def test_a_run_that_may_resync_goes_on_by_itself_when_the_slot_is_dropped(shop: PipelineUnderTest) -> None:
    shop.source_options = 'on_slot_lost = "resync"'
    with shop.follow() as run:
        drop_slot(shop)
        shop.change_something()
        run.until(shop.arrives("select 1 from items where what = 'later'"), "the change has arrived")
        said = run.stop()
    assert said.code == 0
    assert "warning: Beginning anew: The replication slot" in said.out
    shop.assert_nothing_lost()


@WAYS_OUT
def test_the_slot_was_dropped_and_made_again_by_somebody_else(followed: PipelineUnderTest, way_out: str) -> None:
    slot = drop_slot(followed)
    followed.change_something()
    ((at,),) = followed.source.execute(
        "select lsn::text from pg_create_logical_replication_slot(%s, 'pgoutput')", [slot]
    )
    assert_refused(followed, f"the replication slot {slot} was confirmed by another client, or made anew ({at})")
    assert_put_right(followed, way_out)


def test_the_slot_was_advanced_by_somebody_else(followed: PipelineUnderTest) -> None:
    followed.change_something()
    ((at,),) = followed.source.execute(
        "select end_lsn::text from pg_replication_slots, pg_replication_slot_advance(slot_name, pg_current_wal_lsn())"
    )
    assert_refused(
        followed, f"the replication slot {followed.apply_slot} was confirmed by another client, or made anew ({at})"
    )
    assert_put_right(followed, "reset")


def test_a_table_was_dropped_and_created_again(followed: PipelineUnderTest) -> None:
    followed.source.execute("drop table items; create table items (id int primary key, what text)")
    followed.source.execute("insert into items values (7, 'another')")
    assert "(public.items)" in followed.catch_up().complaint
    followed.pgetl("reset", "public.items").assert_well()
    followed.catch_up().assert_well()
    followed.assert_nothing_lost()


def test_the_slot_is_dropped_and_made_again_underneath_a_run(shop: PipelineUnderTest) -> None:
    with shop.follow() as run:
        with run.stands_still():
            slot = drop_slot(shop)
            shop.change_something()
            shop.source.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        complaint = ends(run)
    assert complaint.startswith(f"The slot {slot} was confirmed up to 0/")
    assert "`pgetl reset`" in complaint
    assert_put_right(shop, "resync")


# -- publications -----------------------------------------------------------------------------------------------------


@WAYS_OUT
def test_the_publication_was_dropped(followed: PipelineUnderTest, way_out: str) -> None:
    followed.source.execute("drop publication pgetl_shop")
    followed.change_something()
    assert_refused(followed, "the publication was dropped")
    assert_put_right(followed, way_out)


def test_the_publication_was_dropped_and_made_again_by_somebody_else(followed: PipelineUnderTest) -> None:
    """That one is not ours to change. Dropped, it makes room for ours, and then the gap is told."""
    followed.source.execute("drop publication pgetl_shop")
    followed.change_something()
    followed.source.execute("create publication pgetl_shop for table orders, items")
    said = followed.catch_up()
    assert said.code == 3
    assert said.complaint == (
        "The publication pgetl_shop exists and was not made for pipeline 'shop'. DROP PUBLICATION \"pgetl_shop\", so "
        "that pgetl can make its own; or use it as it is with `manage_publication = false`; or name another "
        "publication."
    )
    followed.source.execute('DROP PUBLICATION "pgetl_shop"')
    assert_refused(followed, "the publication was dropped")
    assert_put_right(followed, "reset")


def test_a_publication_that_is_used_as_it_is_was_made_again(shop: PipelineUnderTest) -> None:
    shop.source.execute("create publication theirs for table orders, items")
    shop.source_options = 'publication = "theirs"\nmanage_publication = false'
    shop.catch_up().assert_well()
    shop.source.execute("drop publication theirs")
    shop.change_something()
    assert "There is no publication theirs" in shop.catch_up().complaint
    shop.source.execute("create publication theirs for table orders, items")
    said = shop.catch_up()
    assert said.code == 3
    assert "the publication was dropped and made again" in said.complaint
    for table in ("public.items", "public.orders"):
        shop.pgetl("reset", table).assert_well()
    shop.assert_nothing_lost()


def test_the_publication_is_dropped_underneath_a_run(shop: PipelineUnderTest) -> None:
    with shop.follow() as run:
        slot = shop.apply_slot
        shop.source.execute("drop publication pgetl_shop")
        shop.change_something()
        complaint = ends(run)
    assert complaint.startswith(f"The slot {slot} has come to changes made while the publication pgetl_shop or")
    assert_refused(shop, "the publication was dropped")
    assert_put_right(shop, "resync")


@pytest.mark.parametrize("source_server", [16, 18], indirect=True)
@WAYS_OUT
def test_the_publication_of_inserts_was_dropped(followed: PipelineUnderTest, way_out: str) -> None:
    """Though it has no table and is made again at once, the slot never comes beyond the time without it."""
    followed.source.execute("drop publication pgetl_shop_inserts")
    followed.change_something()
    assert "while the publication pgetl_shop or pgetl_shop_inserts did not exist" in followed.catch_up().complaint
    assert_refused(followed, "pgetl_shop or pgetl_shop_inserts did not exist for a while")
    assert_put_right(followed, way_out)


@pytest.mark.parametrize("source_server", [16, 18], indirect=True)
def test_the_publication_had_another_name_for_a_while(followed: PipelineUnderTest) -> None:
    followed.source.execute("alter publication pgetl_shop rename to elsewhere")
    followed.change_something()
    followed.source.execute("alter publication elsewhere rename to pgetl_shop")
    assert_refused(followed, "the publication pgetl_shop was altered, and may have left out changes for a while")
    assert_put_right(followed, "resync")


# -- sources and destinations -----------------------------------------------------------------------------------------


@WAYS_OUT
def test_another_cluster_behind_the_same_uri(followed: PipelineUnderTest, own_server: Server, way_out: str) -> None:
    """Nothing is made there, unless it is said to be the right one."""
    first = followed.source
    followed.databases = Databases(own_server.create_database("source"), followed.destination)
    followed.fill()
    followed.source.execute("insert into items values (900, 'only here')")
    ((there,),) = followed.source.execute("select system_identifier::text from pg_control_system()")
    ((known,),) = first.execute("select system_identifier::text from pg_control_system()")
    why = f"the source is another cluster: system identifier {there}, not {known}"
    assert_refused(followed, why)
    assert (followed.slots(), followed.publications(), followed.rows("items")) == ([], [], 50)
    assert_put_right(followed, way_out)


def test_after_the_wrong_cluster_the_right_one_goes_on_as_if_nothing_had_been(
    followed: PipelineUnderTest, own_server: Server
) -> None:
    right = followed.databases
    followed.databases = Databases(own_server.create_database("source"), followed.destination)
    followed.fill()
    assert "another cluster" in followed.catch_up().complaint
    followed.databases = right
    followed.change_something()
    said = followed.catch_up()
    said.assert_well()
    assert "DataSync" not in said.out
    followed.assert_nothing_lost()


def _restored(shop: PipelineUnderTest, meanwhile: Callable[[], None]) -> None:
    """Put the destination back to what it is now, after something has happened."""
    server, name = shop.destination.server, shop.destination.name
    server.create_database(f"{name}_backup", template=name)
    meanwhile()
    server.drop_database(name)
    server.create_database(name, template=f"{name}_backup")
    server.drop_database(f"{name}_backup")


def test_a_destination_restored_from_a_backup(followed: PipelineUnderTest) -> None:
    def replicate_more() -> None:
        followed.change_something()
        followed.catch_up().assert_well()

    _restored(followed, replicate_more)
    said = followed.catch_up()
    assert said.code == 3
    assert "public.orders" in said.complaint
    assert "it was restored" in said.complaint
    for table in ("public.items", "public.orders"):
        followed.pgetl("reset", table).assert_well()
    followed.assert_nothing_lost()


def test_a_destination_restored_while_its_tables_catch_up(shop: PipelineUnderTest) -> None:
    """The group's slot was confirmed already: what is lost comes from nowhere again."""

    def die_at(failpoint: str) -> None:
        shop.environment["PGETL_FAILPOINT"] = failpoint
        assert shop.catch_up().code == -signal.SIGKILL

    def catch_up_in_part() -> None:
        for number in range(12):  # so much that it is not handed over before it has been confirmed
            shop.source.execute("update orders set note = repeat(%s, 2000)", [chr(ord("a") + number)])
        written = False
        while not written:  # and, in the last turn, confirmed
            written = bool(shop.destination.execute("select 1 from orders where length(note) = 2000 limit 1"))
            die_at("catchup.confirmed:2")
        assert shop.phases()["public.orders"] in ("FinishedCopy", "SyncWait")

    die_at("recording.CameNear")
    _restored(shop, catch_up_in_part)
    del shop.environment["PGETL_FAILPOINT"]
    said = shop.catch_up()
    assert (said.code, "it was restored" in said.complaint, "public.orders" in said.complaint) == (3, True, True), said
    shop.source_options = 'on_slot_lost = "resync"'
    assert shop.catch_up().code == 0
    shop.assert_nothing_lost()


def set_items_back(shop: PipelineUnderTest, run: Running) -> None:
    """In the destination, to before an insert that was acknowledged; as by a standby that had not had it yet."""
    at = "select position from pgetl.destination_table where table_name = 'items'"
    ((before,),) = shop.destination.execute(at)
    shop.source.execute("insert into items values (900, 'soon forgotten')")
    mark = "select 1 from pgetl.tables where table_name = 'items' and high_water > %s::pg_lsn"
    run.until(lambda: shop.state.execute(mark, [before]), "the store has noted it")
    with shop.destination.connect(autocommit=False) as session:
        session.execute("delete from items where id = 900")
        session.execute("update pgetl.destination_table set position = %s where table_name = 'items'", [before])
        session.commit()


def forget_items(shop: PipelineUnderTest, run: Running) -> None:
    """In the destination: it is as before the table was copied."""
    del run
    shop.destination.execute("delete from pgetl.destination_table where table_name = 'items'; truncate items")


@pytest.mark.parametrize("going_back", [set_items_back, forget_items])
def test_a_destination_that_goes_back_underneath_a_run_to_which_the_table_does_not_change(
    shop: PipelineUnderTest, going_back: Callable[[PipelineUnderTest, Running], None]
) -> None:
    shop.environment["TEST_WATCH_SECONDS"] = "1"
    with shop.follow() as run:
        going_back(shop, run)
        complaint = ends(run)
    assert complaint.startswith("The destination has public.items before where it had come already: it was restored.")
    assert "public.items" in shop.catch_up().complaint
    shop.pgetl("reset", "public.items").assert_well()
    shop.assert_nothing_lost()


# -- tables whose changes are not sent for a while, by means that leave little trace -----------------------------------


PARTS = """
    create table parts (id int primary key, note text) partition by range (id);
    create table parts_1 partition of parts for values from (0) to (1000);
    insert into parts select n, 'as it was' from generate_series(1, 5) n
"""


def assert_errored_until_copied_again(shop: PipelineUnderTest, table: str) -> None:
    said = shop.catch_up()
    assert shop.phases()[f"public.{table}"] == "Errored", said
    shop.pgetl("reset", f"public.{table}").assert_well()
    shop.catch_up().assert_well()
    statement = f"select id, note from {table} order by id"
    assert shop.destination.execute(statement) == shop.source.execute(statement)


def test_a_partition_that_was_unlogged_when_a_run_was_refused_for_it(shop: PipelineUnderTest) -> None:
    shop.source.execute(PARTS)
    shop.declared = ("public.orders", "public.parts")
    shop.catch_up().assert_well()
    shop.source.execute("alter table parts_1 set unlogged")
    shop.source.execute("update parts set note = 'in no WAL' where id = 1")
    assert "Make it a logged table" in shop.catch_up().complaint
    shop.source.execute("alter table parts_1 set logged")
    assert_errored_until_copied_again(shop, "parts")


def test_a_table_of_a_publication_of_all_that_was_unlogged_when_a_run_was_refused_for_it(
    shop: PipelineUnderTest,
) -> None:
    shop.source.execute("create publication mine for all tables")
    shop.source_options = 'publication = "mine"\nmanage_publication = false'
    shop.catch_up().assert_well()
    shop.source.execute("alter table orders set unlogged")
    shop.source.execute("update orders set note = 'in no WAL' where id = 1")
    assert "unlogged" in shop.catch_up().complaint
    shop.source.execute("alter table orders set logged")
    assert_errored_until_copied_again(shop, "orders")


def test_a_table_that_was_in_a_schema_that_is_not_published_for_a_while(shop: PipelineUnderTest) -> None:
    shop.source.execute("create publication mine for tables in schema public")
    shop.source_options = 'publication = "mine"\nmanage_publication = false'
    shop.catch_up().assert_well()
    shop.source.execute("create schema away")
    shop.source.execute("alter table orders set schema away")
    shop.source.execute("update away.orders set note = 'not sent' where id = 1")
    shop.source.execute("alter table away.orders set schema public")
    said = shop.catch_up().complaint
    assert "Changes may be missing" in said
    assert "public.items" not in said
    shop.pgetl("reset", "public.orders").assert_well()
    shop.catch_up().assert_well()
    shop.assert_nothing_lost()


def test_a_schema_that_was_taken_out_of_its_publication_and_put_back(shop: PipelineUnderTest) -> None:
    shop.source.execute("create publication mine for tables in schema public")
    shop.source_options = 'publication = "mine"\nmanage_publication = false'
    shop.catch_up().assert_well()
    shop.source.execute("alter publication mine drop tables in schema public")
    shop.source.execute("update orders set note = 'not sent' where id = 1")
    shop.source.execute("alter publication mine add tables in schema public")
    assert "Changes may be missing" in shop.catch_up().complaint
    shop.source_options += '\non_slot_lost = "resync"'
    shop.catch_up().assert_well()
    shop.assert_nothing_lost()
