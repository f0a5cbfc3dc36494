"""A server fails over to its standby, and the URI names both."""

from collections.abc import Iterator

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases, Server
from tests.failures.pipeline import PipelineUnderTest
from tests.standby import both, caught_up, promote, slots, start_standby
from tests.waiting import until

pytestmark = pytest.mark.servers

Pair = tuple[Server, Server]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """A primary and a standby that synchronises its slots."""
    with Server.start(18, {"synchronized_standby_slots": "standby"}) as primary:
        primary.create_database("shop")
        slot_sync = {"sync_replication_slots": True, "primary_conninfo": primary.socket_uri()}
        with start_standby(primary, slot="standby", **slot_sync) as standby:
            yield primary, standby


@pytest.mark.slow
def test_a_source_that_fails_over_with_its_slots_is_followed_without_a_gap(shop: PipelineUnderTest, pair: Pair) -> None:
    primary, standby = pair
    shop.databases = Databases(Database(primary, "shop"), shop.destination)
    shop.fill()
    shop.source_options = "failover = true"
    shop.environment["PGETL_SOURCE_URI"] = both(primary, standby, "shop")
    with shop.follow() as run:
        shop.change_something()
        until(lambda: slots(standby) == {shop.apply_slot: (True, True)})
        shop.change_something()
        until(lambda: caught_up(primary, standby))
        primary.kill()
        promote(standby)
        standby.configure({"synchronized_standby_slots": ""})
        shop.databases = Databases(Database(standby, "shop"), shop.destination)
        shop.source.execute("insert into items values (1000, 'after the failover')")
        run.until(shop.arrives("select 1 from items where id = 1000"), "the change has arrived")
        said = run.stop()
    said.assert_well()
    assert said.out.count("DataSync") == 2
    shop.assert_nothing_lost()


@pytest.mark.slow
def test_a_source_that_fails_over_without_the_slot_is_told_as_a_gap(shop: PipelineUnderTest, pair: Pair) -> None:
    primary, standby = pair
    shop.databases = Databases(Database(primary, "shop"), shop.destination)
    shop.fill()
    shop.environment["PGETL_SOURCE_URI"] = both(primary, standby, "shop")
    with shop.follow() as run:
        until(lambda: caught_up(primary, standby))
        primary.kill()
        promote(standby)
        standby.configure({"synchronized_standby_slots": ""})
        said = run.wait()
    assert said.code == 3
    assert "does not exist" in said.complaint
    shop.databases = Databases(Database(standby, "shop"), shop.destination)
    said = shop.catch_up()
    assert said.code == 3
    assert "does not exist any more (public.items, public.orders)" in said.complaint
    shop.source_options = 'on_slot_lost = "resync"'
    shop.assert_nothing_lost()


def test_a_store_and_a_destination_that_fail_over_are_found_again(shop: PipelineUnderTest, pair: Pair) -> None:
    primary, standby = pair
    shop.databases = Databases(shop.source, Database(primary, "shop"))
    shop.state = primary.create_database("state")
    shop.environment["PGETL_DESTINATION_URI"] = both(standby, primary, "shop")
    shop.environment["PGETL_STATE_URI"] = both(standby, primary, "state")
    with shop.follow() as run:
        until(lambda: caught_up(primary, standby))
        primary.kill()
        shop.change_something()
        promote(standby)
        shop.databases = Databases(shop.source, Database(standby, "shop"))
        shop.state = Database(standby, "state")
        run.until(shop.arrives("select 1 from items where what = 'later'"), "the change has arrived")
        said = run.stop()
    said.assert_well()
    assert "in hot standby mode" in said.out
    shop.assert_nothing_lost()
