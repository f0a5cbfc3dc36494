"""A shop is copied while it is traded in, and followed: in the end both sides hold the same, value by value, and on the
way there nobody ever saw half of a transaction."""

import threading
import time
from types import TracebackType
from typing import Self

import psycopg
import pytest

from tests.chaos.conftest import Open
from tests.comparing import assert_equal
from tests.runs import WITH_SPARK, Runs
from tests.shop import SHOP
from tests.trade import Trade

pytestmark = pytest.mark.servers

_SUM = """
select (select sum(amount) from inventory.accounts) + (select sum(amount) from inventory.vaults)
"""
_ALL_THERE_IS = 100_000

# A table that somebody has made beforehand: its types are others, and it computes a column itself.
_INVOICES = """
create table public.invoices (
    id bigint generated always as identity primary key, net numeric, rate numeric, note varchar,
    gross numeric generated always as (net * (1 + rate / 100)) stored, received timestamptz default now())
"""


class Reader:
    """Reads the destination without rest; `seen` are the sums over two tables between which amounts are moved, from
    when both are Ready. `looks` is how often it looked."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self.seen: set[int] = set()
        self.looks = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._over.wait(0.3) and not self._ready:
            pass
        with psycopg.connect(self._runs.databases.destination.uri, autocommit=True) as session:
            while not self._over.wait(0.01):
                self.seen |= {int(total) for (total,) in session.execute(_SUM)}
                self.looks += 1

    @property
    def _ready(self) -> bool:
        phases = self._runs.phases()
        return {phases.get("inventory.accounts"), phases.get("inventory.vaults")} == {"Ready"}


def _assert_arrives(runs: Runs, timeout: float) -> None:
    assert runs.until_caught_up(timeout) == 0, runs.log
    assert_equal(runs.databases, SHOP)
    runs.assert_settled()


@pytest.mark.parametrize("source_server", [18, pytest.param(16, marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize("seed", [1])
def test_a_shop_is_copied_while_it_is_traded_in(shop_runs: Open, seed: int) -> None:
    runs = shop_runs()
    runs.databases.destination.execute(_INVOICES)
    with Trade(runs.databases.source, seed) as trade, Reader(runs) as reader:
        run = runs.start()
        run.until(lambda: runs.all_ready and reader.looks > 10, "all tables were Ready")
        enough = trade.transactions + 100
        run.until(lambda: trade.transactions > enough, "the trade went on")
        run.terminate()
        assert run.wait(60) == 0, run.said()
    assert reader.seen == {_ALL_THERE_IS}
    _assert_arrives(runs, 180)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("destination_server", [15], indirect=True)
@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_spark_copies_it_to_an_older_server(shop_runs: Open) -> None:
    runs = shop_runs(rows=50_000, copy='range_bytes = "1MiB"')
    runs.program = WITH_SPARK
    with Trade(runs.databases.source, 3):
        run = runs.start("--until", "caught-up")
        assert run.wait(150) == 0, run.said()
    _assert_arrives(runs, 180)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_a_million_rows_under_a_heavier_load(shop_runs: Open) -> None:
    runs = shop_runs(rows=1_000_000, copy='table_workers = 3\nrange_bytes = "16MiB"\ngroup_bytes = "32MiB"')
    runs.program = WITH_SPARK
    with Trade(runs.databases.source, 4, per_second=100) as trade, Reader(runs) as reader:
        run = runs.start()
        time.sleep(120)
        run.terminate()
        assert run.wait(60) == 0, run.said()
    assert trade.transactions > 1000
    assert reader.seen == {_ALL_THERE_IS}
    _assert_arrives(runs, 300)
