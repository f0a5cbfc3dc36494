"""What follows the failure of a copy, by the table's history."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl.engine.copy.claims import delay, judged
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import (
    DataSync,
    Errored,
    FinishedCopy,
    Init,
    Phase,
    RetryPolicy,
    TableState,
)
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.state.store import HistoryEntry


def history(*phases: Phase) -> list[HistoryEntry]:
    return [HistoryEntry(TableState(phase), 0.0) for phase in phases]


def test_each_failure_doubles_the_delay_until_a_copy_succeeds() -> None:
    failed = (DataSync(), Errored("-"))

    assert [delay(history(*failed * times)) for times in (0, 1, 2, 3, 50)] == [5.0, 10.0, 20.0, 40.0, 1800.0]
    assert delay(history(*failed * 3, FinishedCopy(Boundary(1)))) == 5.0


TIMED, LEFT = RetryPolicy("timed", 1.0), RetryPolicy("manual")


@pytest.mark.parametrize(
    ("before", "again"),
    [
        ([Errored("rewritten", None, TIMED)], True),
        ([Errored("rewritten", None, TIMED), Errored("rewritten", None, TIMED)], False),
        ([Errored("rewritten", None, TIMED), Errored("away", None, TIMED), Errored("rewritten", None, TIMED)], True),
        ([Errored("rewritten", None, TIMED), FinishedCopy(Boundary(1)), Errored("rewritten", None, TIMED)], True),
        (
            [Errored("rewritten", None, TIMED), Errored("rewritten", None, LEFT), Errored("rewritten", None, TIMED)],
            True,
        ),
    ],
)
def test_the_third_rewriting_in_a_row_is_the_last(before: list[Phase], *, again: bool) -> None:
    between = [phase for one in before for phase in (DataSync(), one, Init())]
    error = judged(PgetlError(ErrorKind.TABLE_REWRITTEN, "rewritten"), history(*between, DataSync()))
    assert (error.kind is ErrorKind.TABLE_REWRITTEN) is again


def test_other_errors_are_what_they_are() -> None:
    error = PgetlError(ErrorKind.CONNECTION, "away")
    assert judged(error, history(*[Errored("away", None, TIMED)] * 5)) is error
