"""Random plans: whatever is altered and restarted, a table is equal to its source or Errored for a true reason."""

from pathlib import Path

import pytest

from tests.edges.alters import _ALTERS, Alter
from tests.edges.plan import draw_plan
from tests.edges.running import failure_of


def test_a_plan_is_a_function_of_its_seed_and_begins_with_the_shorter_one() -> None:
    long, short = draw_plan(3, 120), draw_plan(3, 60)
    assert long.steps == draw_plan(3, 120).steps
    assert long.steps[:60] == short.steps
    assert long.create == short.create


def test_plans_have_every_alteration() -> None:
    drawn = {step.what for seed in range(40) for step in draw_plan(seed, 150).steps if isinstance(step, Alter)}
    assert len(drawn) > len(_ALTERS)


@pytest.mark.servers
def test_a_short_plan(tmp_path: Path) -> None:
    failure = failure_of(draw_plan(1, 30, tables=3), tmp_path)
    assert failure is None, failure


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(100, 120))
def test_a_long_plan(seed: int, tmp_path: Path) -> None:
    failure = failure_of(draw_plan(seed, 300), tmp_path)
    assert failure is None, failure


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(300, 306))
def test_a_long_plan_into_a_lake(seed: int, tmp_path: Path) -> None:
    failure = failure_of(draw_plan(seed, 200, lake=True), tmp_path)
    assert failure is None, failure
