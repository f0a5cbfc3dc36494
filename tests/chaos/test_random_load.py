"""A shop is copied while it is traded in, and followed: in the end both sides hold the same, value by value."""

import time

import pytest

from tests.chaos.conftest import Open
from tests.chaos.equality import assert_equal
from tests.chaos.shop import SHOP
from tests.chaos.trade import Trade

pytestmark = pytest.mark.servers


@pytest.mark.parametrize("seed", [1, 2])
def test_a_shop_is_copied_while_it_is_traded_in(shop_runs: Open, seed: int) -> None:
    runs = shop_runs()
    with Trade(runs.databases.source, seed) as trade:
        run = runs.start()
        time.sleep(15)
        run.terminate()
        assert run.wait(15) == 0, run.said()
    assert trade.transactions["committed"] > 100
    assert runs.until_caught_up(60) == 0, runs.log
    assert_equal(runs.databases, SHOP)
    runs.assert_settled()
