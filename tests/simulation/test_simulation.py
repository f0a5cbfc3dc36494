"""No schedule breaks the protocol: the same ones each time, and, with the slow tests, some that nobody has seen."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tests.simulation.schedule import run_seed, shrink, told
from tests.simulation.worlds import WORLDS

_KNOWN, _LEANING = 40, 5
_BLOCK, _BLOCKS = 200, 8
_FRESH = time.time_ns() // 1_000_000 % 1_000_000_000

_FOUND = [
    # A stream left the store thread only if its last write took less than three seconds; a late one held back every
    # acknowledgement of a generation from then on, and so every later copy to a destination without fences.
    ("no fences", 41),
    # And the next stream of its group began meanwhile, of which such a destination took the late write as well.
    ("no fences", 267),
    # A worker went on for a moment when the state under it was set back, and noted its ceiling there: the slot was
    # confirmed beyond a table that was Ready once more, and nobody could tell.
    ("state restored", 147),
    # A copy that had begun after the backup told its end to the state as it was before.
    ("state restored", 141),
    # A stream that had gathered all that memory allows read no further, before it had recognized the source; and before
    # that nothing may be written.
    ("back-pressure", 0),
    # A worker that found the source gone back to before what it had written kept that to itself: by the time the next
    # one looked, the source's WAL had come further, and nothing showed it any more.
    ("any", 298),
]
"""Schedules in which something was found that has been mended since. The shell has changed, and so have they."""


@pytest.mark.parametrize("world", WORLDS)
def test_known_schedules(world: str) -> None:
    _expect_no_failure(world, range(_KNOWN if world == "any" else _LEANING))


@pytest.mark.parametrize(("world", "seed"), _FOUND)
def test_schedules_that_have_found_something(world: str, seed: int) -> None:
    _expect_no_failure(world, range(seed, seed + 1))


@pytest.mark.slow
@pytest.mark.parametrize("first", [block * _BLOCK for block in range(_BLOCKS)])
def test_more_known_schedules(first: int) -> None:
    _expect_no_failure("any", range(first, first + _BLOCK))


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
def test_fresh_schedules(world: str) -> None:
    """What fails here fails again with the seed that the trace names."""
    _expect_no_failure(world, range(_FRESH, _FRESH + 100))


def _expect_no_failure(world: str, seeds: range) -> None:
    for seed in seeds:
        failure = run_seed(seed, world=world)
        if failure is not None:
            pytest.fail(told(shrink(failure)), pytrace=False)


@pytest.mark.slow
def test_a_seed_always_tells_the_same_story() -> None:
    """In whatever process."""
    told = [_story(hash_seed) for hash_seed in ("1", "2")]
    assert told[0] == told[1]
    assert told[0].count("\n") > 100


def _story(hash_seed: str) -> str:
    given = ["--schedules", "1", "--seed", "17", "--trace"]
    process = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *given],
        env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return process.stdout.rpartition("1 schedules")[0]
