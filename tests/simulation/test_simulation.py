"""No schedule breaks the protocol: the same ones each time, and a block that nobody has seen before."""

from __future__ import annotations

import time

import pytest

from tests.simulation.schedule import run_seed, shrink, told

_BLOCK = 250
_BLOCKS = 8
_FRESH = time.time_ns() // 1_000_000 % 1_000_000_000


@pytest.mark.parametrize("first", [block * _BLOCK for block in range(_BLOCKS)])
def test_known_schedules(first: int) -> None:
    _expect_no_failure(range(first, first + _BLOCK))


@pytest.mark.parametrize("block", range(2))
def test_fresh_schedules(block: int) -> None:
    """What fails here fails again with the seed that the trace names."""
    first = _FRESH + block * _BLOCK
    _expect_no_failure(range(first, first + _BLOCK))


def _expect_no_failure(seeds: range) -> None:
    for seed in seeds:
        failure = run_seed(seed)
        if failure is not None:
            pytest.fail(told(shrink(failure)), pytrace=False)


def test_a_seed_always_tells_the_same_story() -> None:
    first: list[str] = []
    second: list[str] = []
    run_seed(17, first)
    run_seed(17, second)
    assert first == second
    assert len(first) > 100
