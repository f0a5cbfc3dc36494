"""What a person may ask for: to copy once, to go back with a table, to take the whole pipeline away."""

from contextlib import closing

import pytest

from airflow_provider_pgetl.engine.state.store import open_store
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.failures.pipeline import PipelineUnderTest

pytestmark = pytest.mark.servers

VERBS = pytest.mark.parametrize("verb", ["rollback", "reset"])


# -- copy -------------------------------------------------------------------------------------------------------------


def test_a_copy_leaves_no_slot_and_a_run_copies_again_saying_so(shop: PipelineUnderTest) -> None:
    shop.pgetl("copy").assert_well()
    assert shop.phases() == {"public.items": "FinishedCopy", "public.orders": "FinishedCopy"}
    assert shop.slots() == []
    shop.assert_equal()
    shop.change_something()
    said = shop.catch_up()
    said.assert_well()
    assert "warning: public.items is copied again: nothing holds the changes since its copy." in said.out
    shop.assert_equal()
    shop.assert_nothing_lost()


def test_a_copy_after_a_copy_brings_what_has_changed(shop: PipelineUnderTest) -> None:
    shop.pgetl("copy").assert_well()
    shop.change_something()
    shop.pgetl("copy").assert_well()
    shop.assert_equal()
    assert shop.slots() == []


def test_what_is_followed_is_not_copied_once(followed: PipelineUnderTest) -> None:
    said = followed.pgetl("copy")
    assert said.code == 2
    assert said.complaint == (
        "Pipeline shop follows public.items, public.orders: a single copy would end that. Go on with `pgetl run "
        f"{followed.file}`; or copy under another id; or `pgetl destroy {followed.file}` first."
    )
    followed.assert_nothing_lost()


# -- rollback, reset --------------------------------------------------------------------------------------------------


@VERBS
def test_while_nothing_runs(followed: PipelineUnderTest, verb: str) -> None:
    said = followed.pgetl(verb, "public.items")
    said.assert_well()
    assert said.out.startswith("public.items is in Init, generation 2. A run copies it again, whole; until then ")
    assert followed.rows("items") == 50
    followed.change_something()
    said = followed.catch_up()
    said.assert_well()
    assert "public.items: DataSync" in said.out
    assert "public.orders: DataSync" not in said.out
    followed.assert_nothing_lost()


@VERBS
def test_while_it_runs(shop: PipelineUnderTest, verb: str) -> None:
    """The run lets go of the table, copies it again, and never stops following the other."""
    with shop.follow() as run:
        shop.change_something()
        said = shop.pgetl(verb, "public.items")
        said.assert_well()
        assert said.out.startswith("public.items is in Init, generation 2. A run copies it again, whole; until then ")
        shop.change_something()
        run.until(lambda: shop.phases()["public.items"] == "Ready", "the table was Ready again")
        said = run.stop()
    said.assert_well()
    assert said.out.count("public.items: DataSync") == 2
    assert said.out.count("public.orders: DataSync") == 1
    shop.assert_nothing_lost()


# -- destroy ----------------------------------------------------------------------------------------------------------


def test_destroyed_and_begun_anew(followed: PipelineUnderTest) -> None:
    followed.pgetl("reset", "public.items").assert_well()
    followed.catch_up().assert_well()  # so that numbers have risen
    slot = followed.apply_slot
    said = followed.pgetl("destroy", "--yes")
    said.assert_well()
    assert said.out.splitlines() == [
        f"Removed: Slot {slot}.",
        "Removed: Publication pgetl_shop.",
        "Removed: Publication pgetl_shop_inserts.",
        "Removed: What the destination remembered of positions; its tables stay.",
        "Removed: The state of pipeline shop.",
        "Removed: The tables that the state was in: no pipeline is left there.",
    ]
    assert our_schemas(followed.source) == our_schemas(followed.state) == []
    assert (followed.slots(), followed.publications(), followed.rows("items")) == ([], [], 50)
    followed.source.execute("alter table items add column colour text default 'red'")
    followed.assert_nothing_lost()


def test_what_is_destroyed_leaves_nothing_and_is_not_there_to_be_destroyed_again(followed: PipelineUnderTest) -> None:
    """But that the tables were made by us: one that somebody drops leaves no trace at all."""
    followed.destination.execute("drop table items, orders")
    followed.pgetl("destroy", "--yes").assert_well()
    assert our_schemas(followed.destination) == []
    said = followed.pgetl("destroy", "--yes")
    said.assert_well()
    assert said.out == "Nothing is left of pipeline shop; nothing was removed.\n"
    for database in (followed.source, followed.state, followed.destination):
        assert our_schemas(database) == []
    followed.assert_nothing_lost()


def test_what_others_use_stays_until_they_are_gone_too(shop: PipelineUnderTest) -> None:
    """State and destination in one database, and in one schema."""
    shop.environment["PGETL_STATE_URI"] = shop.destination.uri
    with closing(open_store(shop.destination.uri, "other")) as other:
        shop.catch_up().assert_well()
        said = shop.pgetl("destroy", "--yes")
        said.assert_well()
        assert said.out.endswith("Removed: The state of pipeline shop.\n")
        assert other.load() == 0
        other.destroy()
    said = shop.pgetl("destroy", "--yes")
    assert said.out == "Removed: The tables that the state was in: no pipeline is left there.\n"
    assert shop.destination.execute("select tablename from pg_tables where schemaname = 'pgetl' order by 1") == [
        (f"destination_{name}",) for name in ("fence", "range", "table")
    ]


def our_schemas(database: Database) -> list[str]:
    statement = "select nspname::text from pg_namespace where nspname like 'pgetl%'"
    return [name for (name,) in database.execute(statement)]


def test_a_pipeline_that_runs_is_not_destroyed(shop: PipelineUnderTest) -> None:
    with shop.follow() as run:
        said = shop.pgetl("destroy", "--yes")
        assert said.code == 2
        assert said.complaint.startswith(f"Pipeline shop is being streamed by process {run.process.pid} on ")
        assert said.complaint.endswith(". Stop `pgetl run` first.")
        run.stop().assert_well()
    shop.assert_nothing_lost()


def test_destroyed_while_the_destination_is_away(followed: PipelineUnderTest) -> None:
    """A destination that is gone for good does not keep it; of one that comes back it is told what is left to do."""
    followed.environment["PGETL_DESTINATION_URI"] = "postgresql://me:hunter2@127.0.0.1:1/x"
    said = followed.pgetl("destroy", "--yes")
    assert said.code == 0
    said.assert_presentable()
    assert "warning: The destination still remembers the pipeline: No connection to the destination" in said.err
    assert followed.slots() == []
    followed.environment.clear()
    said = followed.catch_up()
    assert said.code == 3
    assert f"`pgetl destroy {followed.file}` and then `pgetl run {followed.file}`" in said.complaint
    followed.pgetl("destroy", "--yes").assert_well()
    followed.assert_nothing_lost()
