"""Where we are in the WAL: boundaries lie between transactions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.positions import START, Boundary, CommitLsn, format_lsn, parse_lsn

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
