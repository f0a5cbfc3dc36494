"""How old what waits is."""

from __future__ import annotations

from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.sync.ages import Ages


def ages(*commits: tuple[int, float]) -> Ages:
    found = Ages()
    for end, at in commits:
        found.committed(Boundary(end), at)
    return found


def test_nothing_waits_at_first_nor_when_all_is_durable() -> None:
    assert Ages().oldest(Boundary(0)) is None
    assert ages((10, 1.0), (20, 5.0)).oldest(Boundary(20)) is None


def test_the_oldest_commit_that_is_not_durable_counts_however_new_the_newest_is() -> None:
    found = ages((10, 1.0), (20, 5.0), (30, 9.0))
    assert found.oldest(Boundary(9)) == 1.0
    assert found.oldest(Boundary(10)) == 5.0
    assert found.oldest(Boundary(29)) == 9.0


def test_commits_close_to_each_other_wait_until_the_last_of_them_is_durable() -> None:
    found = ages((10, 1.0), (20, 1.05), (30, 2.0))
    assert found.oldest(Boundary(10)) == 1.0
    assert found.oldest(Boundary(20)) == 2.0


def test_a_stream_that_is_held_up_for_a_day_remembers_little_and_stays_about_right() -> None:
    found = ages(*((n, n * 0.5) for n in range(1, 172_800)))
    assert len(found._waiting) <= 1000
    assert found.oldest(Boundary(0)) == 0.5
    half = found.oldest(Boundary(86_400))
    assert half is not None
    assert abs(half - 43_200) < 400
