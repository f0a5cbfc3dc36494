"""What the state says of how many changes of which kind have come: each once, or nothing."""

from collections.abc import Callable

import pytest

from tests.failures.pipeline import PipelineUnderTest

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.slow]

_COUNTED = """select counted_from::text, array[inserts, updates, deletes, truncates]::int[], commit_time
              from pgetl.tables where table_name = 'orders'"""


def counted(shop: PipelineUnderTest) -> tuple[str, list[int], int]:
    ((since, rows, committed),) = shop.state.execute(_COUNTED)
    return since, rows, committed


def has_come(shop: PipelineUnderTest, before: list[int], *more: int) -> Callable[[], bool]:
    """Whether so many inserts, updates, deletes and truncates were counted more."""
    return lambda: counted(shop)[1] == [one + other for one, other in zip(before, more, strict=True)]


def change(shop: PipelineUnderTest) -> None:
    """Three inserts, two updates, a delete and a TRUNCATE, in two transactions; and one that is rolled back."""
    with shop.source.connect(autocommit=False) as session:
        session.execute("insert into orders select g, 'n', g from generate_series(100001, 100003) g")
        session.execute("update orders set note = 'm' where id <= 100002 and id > 100000")
        session.execute("delete from orders where id = 100003")
        session.commit()
        session.execute("delete from orders")
        session.rollback()
        session.execute("truncate orders")
        session.commit()


def test_each_change_is_counted_once_whatever_ends_in_between(shop: PipelineUnderTest) -> None:
    running = shop.follow()
    shop.source.execute("insert into orders values (99999, 'first', 1)")
    running.until(lambda: counted(shop)[1][0] == 1, "the first was counted")
    since, before, first = counted(shop)
    change(shop)
    running.until(has_come(shop, before, 3, 2, 1, 1), "all were counted")
    assert counted(shop)[0] == since
    assert counted(shop)[2] > first

    before = counted(shop)[1]
    for place in (shop.source, shop.destination):
        place.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid()"
        )
    change(shop)
    running.until(has_come(shop, before, 3, 2, 1, 1), "what came after the sessions were lost was counted")
    assert counted(shop)[0] == since

    running.stop().assert_well()
    before = counted(shop)[1]
    change(shop)
    running = shop.follow()
    running.until(has_come(shop, before, 3, 2, 1, 1), "the next worker goes on counting")
    assert counted(shop)[0] == since

    before = counted(shop)[1]
    with shop.source.connect() as session:
        for number in range(200):
            session.execute(b"insert into orders values (%s, 'x', 1)", [200_000 + number])
            if number == 100:
                running.kill()
    running = shop.follow()
    running.until(shop.arrives("select 1 from orders where id = 200199"), "all arrived")
    shop.source.execute("delete from orders where id = 200000")
    running.until(lambda: counted(shop)[1][2] in (1, before[2] + 1), "the delete was counted")
    after = counted(shop)
    if after[0] == since:
        assert after[1][0] == before[0] + 200, "exactly"
    else:
        assert after[1][0] <= 200, "anew, from another position"
    running.stop().assert_well()
