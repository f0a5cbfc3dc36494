"""How old what waits is."""

from __future__ import annotations

from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.sync.ages import Ages

NOW = 70.0
SOURCES_NOW = 100_000.0


def oldest(found: Ages, durable: int) -> float:
    """When the oldest commit beyond it was, by the source's clock."""
    return SOURCES_NOW - found.oldest(Boundary(durable), NOW)


def ages(*commits: tuple[int, float]) -> Ages:
    found = Ages()
    for end, at in commits:
        found.committed(Boundary(end), at, NOW)
    found.heard(SOURCES_NOW, NOW)
    return found


def test_nothing_waits_at_first_nor_when_all_is_durable() -> None:
    assert Ages().oldest(Boundary(0), NOW) == 0
    assert ages((10, 1.0), (20, 5.0)).oldest(Boundary(20), NOW) == 0


def test_the_oldest_commit_that_is_not_durable_counts_however_new_the_newest_is() -> None:
    found = ages((10, 1.0), (20, 5.0), (30, 9.0))
    assert oldest(found, 9) == 1.0
    assert oldest(found, 10) == 5.0
    assert oldest(found, 29) == 9.0


def test_commits_close_to_each_other_wait_until_the_last_of_them_is_durable() -> None:
    found = ages((10, 1.0), (20, 1.05), (30, 2.0))
    assert oldest(found, 10) == 1.0
    assert oldest(found, 20) == 2.0


def test_a_stream_that_is_held_up_for_a_day_remembers_little_and_stays_about_right() -> None:
    found = ages(*((n, n * 0.5) for n in range(1, 172_800)))
    assert len(found._waiting) <= 1000
    assert oldest(found, 0) == 0.5
    half = oldest(found, 86_400)
    assert abs(half - 43_200) < 400


def test_an_age_is_told_by_the_sources_clock_whatever_this_machine_takes_the_time_to_be() -> None:
    found = Ages()
    found.committed(Boundary(10), 1000.0, now=1.0)
    assert found.oldest(Boundary(0), now=4.0) == 3.0
    found.heard(1010.0, now=5.0)
    assert found.oldest(Boundary(0), now=6.0) == 11.0
    found.heard(990.0, now=7.0)  # the source's clock was set back
    assert found.oldest(Boundary(0), now=8.0) == 0.0
