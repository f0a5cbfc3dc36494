"""When recorded positions still mean something."""

from dataclasses import replace

import pytest

from airflow_provider_pgetl.engine.lineage import Lineage, compare
from airflow_provider_pgetl.engine.positions import Boundary

FIRST = Lineage("7709", 1, (), 16384, 16500)
PROMOTED = replace(FIRST, timeline=2, switch_points=((1, Boundary(500)),))
AGAIN = replace(FIRST, timeline=3, switch_points=((1, Boundary(500)), (2, Boundary(900))))
END = Boundary(10_000)


def test_the_same_lineage_goes_on() -> None:
    assert compare(FIRST, FIRST, Boundary(400), END) is None


@pytest.mark.parametrize("recorded", [FIRST, PROMOTED])
def test_a_failover_that_lost_nothing_of_ours_goes_on(recorded: Lineage) -> None:
    assert compare(recorded, AGAIN, Boundary(500), END) is None


@pytest.mark.parametrize(
    ("recorded", "present", "furthest", "said"),
    [
        (FIRST, replace(FIRST, system="42"), 400, "another cluster"),
        (FIRST, replace(FIRST, database=5), 400, "another database"),
        (FIRST, replace(FIRST, publication=5), 400, "dropped and made again"),
        (FIRST, replace(FIRST, publication=0), 400, "the publication was dropped"),
        (FIRST, PROMOTED, 501, "branched at 0/1F4, before 0/1F5"),
        (PROMOTED, AGAIN, 901, "branched at 0/384, before 0/385"),
        (PROMOTED, FIRST, 100, "went back from timeline 2 to 1"),
        (PROMOTED, replace(PROMOTED, switch_points=((1, Boundary(300)),)), 100, "another branch"),
        (PROMOTED, replace(AGAIN, switch_points=((1, Boundary(500)),)), 100, "does not descend from timeline 2"),
        (FIRST, FIRST, 10_001, "WAL ends at 0/2710"),
    ],
)
def test_a_difference_is_named(recorded: Lineage, present: Lineage, furthest: int, said: str) -> None:
    reason = compare(recorded, present, Boundary(furthest), END)
    assert reason is not None
    assert said in reason
