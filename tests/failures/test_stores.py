"""Where the state is kept: elsewhere, in another place than before, lost, or for a while away."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from airflow_provider_pgetl.engine.model.phases import Failed, RetryPolicy
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.store import open_store
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases, Server
from tests.failures.pipeline import PipelineUnderTest, Running

pytestmark = pytest.mark.servers


@pytest.fixture
def other_store(shop: PipelineUnderTest, server16: Server) -> Iterator[Database]:
    database = server16.create_database(f"{shop.state.name}_other")
    yield database
    server16.drop_database(database.name)


def test_the_source_holds_nothing_of_the_state_when_it_is_elsewhere(followed: PipelineUnderTest) -> None:
    assert followed.source.execute("select 1 from pg_namespace where nspname like 'pgetl%'") == []
    assert followed.state.execute("select 1 from pg_namespace where nspname = 'pgetl'") != []


def test_two_pipelines_of_one_id_from_two_stores(followed: PipelineUnderTest, other_store: Database) -> None:
    """The second touches nothing of the first."""
    slots, publications = followed.slots(), followed.publications()
    followed.environment["PGETL_STATE_URI"] = other_store.uri
    said = followed.catch_up()
    assert said.code == 3
    instance = slots[0].split("_")[2]
    assert said.complaint == (
        f"The publication pgetl_shop, pgetl_shop_inserts belongs to pipeline 'shop' of another state store (instance "
        f"{instance}). Point [state] uri at that store, or give this pipeline another id; if that store is gone for "
        'good: DROP PUBLICATION "pgetl_shop", "pgetl_shop_inserts"; SELECT pg_drop_replication_slot(slot_name) FROM '
        f"pg_replication_slots WHERE slot_name ~ '_{instance}_';"
    )
    assert (followed.slots(), followed.publications()) == (slots, publications)
    followed.environment.clear()
    followed.change_something()
    said = followed.catch_up()
    said.assert_well()
    assert "DataSync" not in said.out
    followed.assert_nothing_lost()


@pytest.fixture
def other(shop: PipelineUnderTest, server16: Server, other_store: Database) -> Iterator[PipelineUnderTest]:
    """A pipeline of the same id, of another source, another store and another destination."""
    databases = Databases(*(server16.create_database(f"{one.name}_other") for one in shop.databases))
    folder = shop.folder / "other"
    folder.mkdir()
    pipeline = replace(shop, databases=databases, state=other_store, folder=folder, started=[])
    pipeline.fill()
    yield pipeline
    pipeline.close()
    for database in databases:
        server16.drop_database(database.name)


@pytest.mark.parametrize("lake", [False, True])
def test_two_pipelines_of_one_id_of_two_sources(shop: PipelineUnderTest, other: PipelineUnderTest, lake: bool) -> None:
    """One has counted further than the other, before it is led to the other's destination."""
    if lake:
        shop.place, other.place = (f'type = "delta"\nuri = "{one.folder}/lake"' for one in (shop, other))
    other.catch_up().assert_well()
    other.pgetl("reset", "public.items").assert_well()
    other.catch_up().assert_well()
    shop.catch_up().assert_well()
    other.place, other.databases = shop.place, Databases(other.source, shop.destination)
    said = other.catch_up()
    assert (said.code, "pipeline shop of another state store" in said.complaint) == (3, True), said
    shop.change_something()
    said = shop.catch_up()
    said.assert_well()
    assert "DataSync" not in said.out


def test_another_store_has_claimed_the_destination_meanwhile(followed: PipelineUnderTest) -> None:
    """A worker that the destination refuses repeatedly ends with an error."""
    with followed.follow() as run:
        followed.destination.execute("update pgetl.destination_fence set epoch = epoch + 1000")
        followed.change_something()
        said = run.wait()
    assert said.code == 1
    assert "may not write: the destination belongs to epoch" in said.complaint


def test_the_store_is_lost(followed: PipelineUnderTest, other_store: Database) -> None:
    """The remedies of the messages, followed one after the other, repair it: tables are copied again, and no slot or
    publication is left over."""
    followed.pgetl("reset", "public.items").assert_well()
    followed.catch_up().assert_well()
    followed.state = other_store
    said = followed.catch_up()
    statements = said.complaint.partition("gone for good: ")[2]
    with followed.source.connect() as session:
        session.execute(statements.encode())
    assert (followed.slots(), followed.publications()) == ([], [])
    said = followed.catch_up()
    assert said.code == 3
    assert said.complaint == (
        "The destination was written by pipeline shop of another state store, or this store was lost, or restored from "
        f"a backup, since. If no other store is in use, `pgetl destroy {followed.file}` and then `pgetl run "
        f"{followed.file}`: every table is copied again. Else give this pipeline another id."
    )
    assert (followed.slots(), followed.publications()) == ([], [])
    followed.pgetl("destroy", "--yes").assert_well()
    followed.assert_nothing_lost()


def test_the_store_is_restarted_under_a_run(shop: PipelineUnderTest, own_server: Server) -> None:
    shop.state = own_server.create_database("state")
    with shop.follow() as run:
        own_server.restart("immediate")
        shop.change_something()
        run.until(shop.arrives("select 1 from items where what = 'later'"), "the change has arrived")
        shop.pgetl("reset", "public.items").assert_well()
        run.until(lambda: _is_copied_again(run.said.out), "the table was copied again")
        said = run.stop()
    said.assert_well()
    shop.assert_nothing_lost()


def _is_copied_again(said: str) -> bool:
    """Whether or not it was Ready before."""
    _, *copies = said.split("public.items: DataSync")
    return len(copies) == 2 and "public.items: Ready" in copies[-1]


def test_the_store_is_emptied_under_a_run(shop: PipelineUnderTest) -> None:
    """The run ends with an error that says so."""
    with shop.follow() as run:
        shop.state.execute("delete from pgetl.pipelines")
        said = run.wait(120)
    assert said.code == 1
    assert said.complaint == (
        'The stored state of pipeline "shop" was destroyed while this process was at work. '
        "Start the pipeline again if it is still wanted; it begins anew."
    )
    assert said.out.count("was destroyed") <= 2


@pytest.mark.slow
def test_the_store_stays_away(shop: PipelineUnderTest, own_server: Server) -> None:
    """The worker goes on for as long as its lease lasts; after that another worker may have taken over."""
    shop.state = own_server.create_database("state")
    with shop.follow() as run:
        own_server.stop("immediate")
        shop.change_something()
        run.until(shop.arrives("select 1 from items where what = 'later'"), "the change has arrived")
        said = run.wait(120)
    assert said.code == 1
    assert said.complaint.startswith("The store has been out of reach for as long as the lease lasts. No connection to")
    assert said.complaint.endswith("Check that the server is up and reachable from here.")
    own_server.resume()
    shop.assert_nothing_lost()


def test_a_second_run_of_the_same_pipeline_waits_and_takes_over(shop: PipelineUnderTest) -> None:
    with shop.follow() as run:
        second = shop.start("run")
        second.until_said(f"Another run, process {run.process.pid} on ")
        shop.change_something()
        run.until(shop.arrives("select 1 from items where what = 'later'"), "the change has arrived")
        run.stop().assert_well()
        shop.change_something()
        second.until(lambda: shop.rows("items") == shop.rows("items", shop.source), "the second has taken over")
        second.stop().assert_well()
    shop.assert_nothing_lost()


# -- machines whose clocks differ share a pipeline ---------------------------------------------------------------------


ITEMS = TableName("public", "items")


def test_a_retry_is_due_when_the_store_says_so_on_a_machine_whose_clock_is_behind(followed: PipelineUnderTest) -> None:
    with closing(open_store(followed.state.uri, "shop")) as store:
        state = store.tables()[ITEMS].state
        at = RetryPolicy("timed", store.now() + 1.0)
        store.apply({ITEMS: Failed(state.generation, "It failed.", "Wait.", at, state.attempt)})
    followed.environment["TEST_CLOCK_AHEAD"] = "-3600"
    with followed.start("run") as run:
        run.until(lambda: followed.phases()["public.items"] == "Ready", "the table was Ready again")
        run.stop().assert_well()
    followed.assert_nothing_lost()


# -- the state is set back to an earlier one, as from a backup ---------------------------------------------------------


_TABLES = "select tablename::text from pg_tables where schemaname = 'pgetl' order by 1"


def back_up(shop: PipelineUnderTest) -> None:
    with shop.state.connect(autocommit=False) as session:
        session.execute("create schema backup")
        for (name,) in session.execute(_TABLES).fetchall():
            session.execute(f"create table backup.{name} as table pgetl.{name}".encode())


def restore(shop: PipelineUnderTest) -> None:
    """In one transaction and without triggers, so that no process is notified."""
    with shop.state.connect(autocommit=False) as session:
        session.execute("set session_replication_role = replica")
        for (name,) in session.execute(_TABLES).fetchall():
            session.execute(f"delete from pgetl.{name}".encode())
            session.execute(f"insert into pgetl.{name} overriding system value table backup.{name}".encode())


def copy_items_again(shop: PipelineUnderTest, run: Running) -> None:
    shop.pgetl("reset", "public.items").assert_well()
    run.until(lambda: run.said.out.count("public.items: Ready") == 2, "the table was copied again")


def apply_changes(shop: PipelineUnderTest, run: Running) -> None:
    shop.change_something()
    run.until(shop.arrives("select 1 from items where what = 'later'"), "the change has arrived")
    ((known,),) = shop.state.execute("select (max(boundary) - '0/0')::bigint from backup.progress")
    run.until(lambda: confirmed(shop) > known, "the source was told of more than the backup knows")


def confirmed(shop: PipelineUnderTest) -> int:
    statement = "select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where slot_name = %s"
    ((position,),) = shop.source.execute(statement, [shop.apply_slot])
    return int(position)


@pytest.mark.parametrize(
    ("since", "why"),
    [
        (copy_items_again, "or this store was lost, or restored from a backup, since"),
        (apply_changes, "was confirmed by another client, or made anew"),
    ],
)
def test_what_was_done_under_the_same_epoch_since_is_noticed(
    shop: PipelineUnderTest, since: Callable[[PipelineUnderTest, Running], None], why: str
) -> None:
    """A worker that starts raises the epoch, which the destination remembers; this one ran on."""
    with shop.follow() as run:
        back_up(shop)
        since(shop, run)
        run.kill()
    restore(shop)
    shop.change_something()
    said = shop.catch_up()
    assert (said.code, why in said.complaint) == (3, True), said
    shop.pgetl("destroy", "--yes").assert_well()
    shop.assert_nothing_lost()


@pytest.mark.slow
def test_a_run_ends_whose_state_is_set_back_under_it(shop: PipelineUnderTest) -> None:
    with shop.follow() as run:
        back_up(shop)
        copy_items_again(shop, run)
        restore(shop)
        shop.change_something()
        said = run.wait()
    assert said.code == 1
    assert "was set back to an earlier one while this process was at work" in said.complaint
    assert shop.catch_up().code == 3
    shop.pgetl("destroy", "--yes").assert_well()
    shop.assert_nothing_lost()
