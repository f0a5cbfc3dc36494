"""A run is killed at random moments, with everything that belongs to it, and started again: in the end nothing is lost,
nothing twice, and nothing left lying about."""

import random
import time

import pytest

from tests.chaos.conftest import Open
from tests.comparing import assert_equal
from tests.runs import KILLED, WITH_SPARK, WITHOUT_SPARK, Program, Runs
from tests.shop import SHOP
from tests.trade import Trade

pytestmark = pytest.mark.servers

_COPY = 'table_workers = 2\nrange_bytes = "256KiB"\ngroup_bytes = "2MiB"'


def _kill_now_and_then(runs: Runs, dice: random.Random, times: int, longest: float) -> None:
    """Each run dies at a moment of its own; one that ends by itself before has failed."""
    for _ in range(times):
        run = runs.start()
        time.sleep(dice.uniform(1.0, longest))
        assert run.running, f"the run ended by itself with {run.process.returncode}\n{run.said()}"
        run.kill()
        assert run.process.returncode == KILLED


def _assert_arrives(runs: Runs, timeout: float) -> None:
    assert runs.until_caught_up(timeout) == 0, runs.log
    assert_equal(runs.databases, SHOP)
    runs.assert_settled()


def _chaos(runs: Runs, seed: int, times: int, longest: float, program: Program) -> None:
    runs.program = program
    with Trade(runs.databases.source, seed):
        _kill_now_and_then(runs, random.Random(seed), times, longest)
    _assert_arrives(runs, 120)


@pytest.mark.parametrize("source_server", [16], indirect=True)
@pytest.mark.parametrize("times", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_killed_now_and_then(shop_runs: Open, times: int) -> None:
    _chaos(shop_runs(copy=_COPY), 1, times, 8.0, WITHOUT_SPARK)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_killed_with_its_spark_drivers(shop_runs: Open) -> None:
    _chaos(shop_runs(copy=_COPY, spark='master = "local[1]"'), 2, 8, 20.0, WITH_SPARK)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("source_server", [16], indirect=True)
@pytest.mark.parametrize("seed", range(5))
def test_killed_a_hundred_times(shop_runs: Open, seed: int) -> None:
    _chaos(shop_runs(rows=100_000, copy=_COPY), seed, 20, 12.0, WITHOUT_SPARK)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_killed_a_hundred_times_with_its_spark_drivers(shop_runs: Open) -> None:
    runs = shop_runs(rows=1_000_000, copy='table_workers = 2\ngroup_bytes = "32MiB"', spark='master = "local[2]"')
    _chaos(runs, 7, 100, 40.0, WITH_SPARK)
