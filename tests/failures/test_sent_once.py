"""Which transactions a connection gets depends on where it begins: PostgreSQL decodes one that was open while a
publication changed by what it had decoded before. That a healthy source sends less, or more, is no other history."""

import time
from collections.abc import Callable

import pytest

from tests.failures.pipeline import PipelineUnderTest

pytestmark = pytest.mark.servers


def confirmed_past(shop: PipelineUnderTest, lsn: str) -> Callable[[], bool]:
    statement = "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots where slot_name = %s"
    return lambda: shop.source.execute(statement, [lsn, shop.apply_slot]) == [(True,)]


def published(shop: PipelineUnderTest) -> object:
    return shop.source.execute("select 1 from pg_publication_tables where tablename = 'orders'")


def between(shop: PipelineUnderTest) -> str:
    """A transaction on the same table, while the other is open: the position behind it."""
    shop.source.execute("insert into orders values (9002, 'between', 1)")
    ((lsn,),) = shop.source.execute("select pg_current_wal_flush_lsn()::text")
    return str(lsn)


@pytest.mark.parametrize("entering", [True, False])
def test_a_transaction_that_was_open_while_its_table_was_declared_or_left_out(
    shop: PipelineUnderTest, entering: bool
) -> None:
    without, both = ("public.items",), ("public.items", "public.orders")
    before, after = (without, both) if entering else (both, without)
    shop.declared = before
    shop.catch_up().assert_well()
    with shop.source.connect(autocommit=False) as session:
        session.execute("insert into orders values (9001, 'open', 1)")
        shop.declared = after
        with shop.start("run") as run:
            if entering:
                run.until(lambda: published(shop), "orders is published")
            else:
                shop.source.execute("insert into items values (7000, 'begun')")
                run.until(shop.arrives("select 1 from items where id = 7000"), "it streams")
            run.until(confirmed_past(shop, between(shop)), "what came between is confirmed")
            session.commit()
            time.sleep(0.03)
            shop.source.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s",
                [shop.apply_slot],
            )
            time.sleep(1.5)
            shop.source.execute("insert into items values (8000, 'goes on')")
            run.until(shop.arrives("select 1 from items where id = 8000"), "it goes on", 60)
            said = run.stop()
    assert said.code == 0, said


def test_the_end_of_a_write_is_not_that_of_a_transaction_that_may_not_be_sent_again(shop: PipelineUnderTest) -> None:
    shop.declared = ("public.items",)
    shop.catch_up().assert_well()
    with shop.source.connect(autocommit=False) as session:
        session.execute("insert into orders values (9001, 'open', 1)")
        shop.declared = ("public.items", "public.orders")
        run = shop.start("run")
        run.until(lambda: published(shop), "orders is published")
        run.until(lambda: shop.streams, "it streams")
        run.until(confirmed_past(shop, between(shop)), "what came between is confirmed")
        with shop.destination.connect(autocommit=False) as held:
            held.execute("lock table items in access exclusive mode")
            shop.source.execute("insert into items values (8001, 'first')")
            time.sleep(0.3)
            shop.source.execute("insert into items values (8002, 'second')")
            session.commit()
            time.sleep(0.1)
            held.commit()
        run.until(shop.arrives("select 1 from items where id = 8002"), "it is written")
        run.kill()
    assert shop.catch_up().code == 0
