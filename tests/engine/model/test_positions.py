"""Where we are in the WAL: boundaries lie between transactions."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.positions import (
    START,
    Boundary,
    CommitLsn,
    Lineage,
    compare,
    format_lsn,
    parse_lsn,
)
from airflow_provider_pgetl.engine.source.server import Present

LSNS = st.integers(0, 2**64 - 1)


@given(LSNS)
def test_an_lsn_is_written_as_postgres_writes_it(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn
    assert Boundary.parse(str(Boundary(lsn))) == Boundary(lsn)


def test_the_spelling() -> None:
    assert format_lsn(0x16_B374D848) == "16/B374D848"
    assert format_lsn(0) == "0/0"
    assert parse_lsn("16/b374d848") == 0x16_B374D848


def test_a_boundary_covers_what_commits_before_it_alone() -> None:
    """The next transaction's commit LSN may equal the last one's end: it lies behind the boundary."""
    end = Boundary(1000)
    assert end.covers(CommitLsn(999))
    assert not end.covers(CommitLsn(1000))


@given(LSNS, LSNS, LSNS)
def test_a_later_boundary_covers_what_an_earlier_one_does(one: int, other: int, commit: int) -> None:
    earlier, later = sorted([Boundary(one), Boundary(other)])
    assert later.covers(CommitLsn(commit)) or not earlier.covers(CommitLsn(commit))
    assert earlier >= START


# -- When recorded positions still mean something. ---------------------------------------------------------------------

FIRST = Lineage("7709", 1, (), 16384, 16500)
PROMOTED = replace(FIRST, timeline=2, switch_points=((1, Boundary(500)),))
AGAIN = replace(FIRST, timeline=3, switch_points=((1, Boundary(500)), (2, Boundary(900))))
END = Boundary(10_000)


def test_the_same_lineage_goes_on() -> None:
    assert compare(FIRST, FIRST, Boundary(400), END) is None


@pytest.mark.parametrize("recorded", [FIRST, PROMOTED])
def test_a_failover_that_lost_nothing_of_ours_goes_on(recorded: Lineage) -> None:
    assert compare(recorded, AGAIN, Boundary(500), END) is None


def test_a_promotion_that_a_stream_has_lived_through_goes_on() -> None:
    """What was seen beyond the branch was seen on it: the slot was confirmed there."""
    assert compare(FIRST, PROMOTED, Boundary(600), END, confirmed=Boundary(501)) is None
    assert compare(FIRST, PROMOTED, Boundary(600), END, confirmed=Boundary(500)) is not None


def test_a_lineage_that_has_ended_does_not_go_on() -> None:
    assert compare(replace(FIRST, ended="it went back"), FIRST, Boundary(400), END) == "it went back"


def test_a_standby_that_has_not_replayed_all_of_it_again_is_waited_for() -> None:
    behind = Present(FIRST, Boundary(300), standby=True)
    with pytest.raises(PgetlError, match="has replayed 0/12C only") as raised:
        behind.difference(FIRST, Boundary(400))
    assert raised.value.transient
    assert behind.difference(FIRST, Boundary(300)) is None
    assert "another cluster" in (behind.difference(replace(FIRST, system="42"), Boundary(400)) or "")


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
