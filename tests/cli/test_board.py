"""The picture of a run: what is copied, what streams, where each table is."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl.cli.board import Board
from airflow_provider_pgetl.engine.model.phases import DataSync, FinishedCopy, Init, Ready
from airflow_provider_pgetl.engine.model.positions import Boundary
from tests.cli.reported import ITEMS, MIB, ORDERS, copied, reached, streamed


def test_nothing_told_nothing_shown() -> None:
    picture = Board().picture()
    assert not picture.tables
    assert not picture.copies
    assert not picture.streams


def test_tables_by_phase_in_order_of_names() -> None:
    board = Board()
    board.tell(reached(Ready()), 0.0)
    board.tell(reached(Ready(), ITEMS), 0.0)
    assert board.picture().by_phase == {"Ready": (ITEMS, ORDERS)}


def test_the_same_state_told_twice_changes_nothing() -> None:
    board = Board()
    assert board.tell(reached(Init()), 0.0)
    assert not board.tell(reached(Init()), 1.0)
    assert board.tell(reached(DataSync()), 2.0)


def test_a_copy_is_shown_until_its_table_is_published() -> None:
    board = Board()
    board.tell(reached(DataSync()), 0.0)
    board.tell(copied(25 * MIB), 1.0)
    (view,) = board.picture().copies
    assert view.share == 0.25
    board.tell(reached(FinishedCopy(Boundary(1))), 2.0)
    assert board.picture().copies == ()


def test_a_table_that_grew_while_it_was_copied_is_not_more_than_done() -> None:
    board = Board()
    board.tell(copied(150 * MIB), 0.0)
    board.tell(copied(0, total=0, table=ITEMS), 0.0)
    assert [view.share for view in board.picture().copies] == [1.0, 1.0]


def test_rates_are_of_the_last_seconds() -> None:
    board = Board()
    for second in range(60):
        board.tell(streamed(1000 * second), float(second))
    for second in range(60, 90):
        board.tell(streamed(59_000), float(second))
    assert board.stream("apply").rate == 0.0
    board.tell(streamed(60_000), 91.0)
    assert board.stream("apply").rate == pytest.approx(1000 / 10, rel=0.1)


def test_one_report_makes_no_rate() -> None:
    board = Board()
    board.tell(streamed(1000), 5.0)
    assert board.stream("apply").rate == 0.0


def test_a_new_attempt_counts_from_zero_and_its_rate_is_not_negative() -> None:
    board = Board()
    board.tell(copied(50 * MIB), 0.0)
    board.tell(copied(0, attempt=2), 1.0)
    board.tell(copied(10 * MIB, attempt=2), 2.0)
    assert board.copy(ORDERS).rate == 10 * MIB


def test_a_groups_stream_is_over_when_its_tables_have_caught_up() -> None:
    board = Board()
    board.tell(reached(FinishedCopy(Boundary(1)), attempt=7), 0.0)
    board.tell(streamed(1, "apply"), 0.0)
    board.tell(streamed(1, "c7"), 0.0)
    assert [view.progress.stream for view in board.picture().streams] == ["apply", "c7"]
    board.tell(reached(Ready(), attempt=7), 1.0)
    assert [view.progress.stream for view in board.picture().streams] == ["apply"]
