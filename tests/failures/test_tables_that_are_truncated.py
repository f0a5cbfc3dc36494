"""A table that is emptied again and again, as staging tables are, is copied once, and followed like any other."""

import pytest

from tests.engine.destinations.delta.reading import rows_of
from tests.failures.pipeline import PipelineUnderTest
from tests.trade import Truncates

pytestmark = pytest.mark.servers


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
