"""Whom a failure concerns, and when the table is tried again."""

import pytest

from airflow_provider_pgetl.engine.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.phases import DataSync, Errored, FinishedCopy, Phase, RetryPolicy, TableState
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.state.protocol import HistoryEntry
from airflow_provider_pgetl.engine.sync.copying.failing import concerns_one_table, delay, retry_policy


def history(*phases: Phase) -> list[HistoryEntry]:
    return [HistoryEntry(TableState(phase), 0.0) for phase in phases]


@pytest.mark.parametrize(
    ("error", "alone"),
    [
        (PgetlError(ErrorKind.VALUE, "-"), True),
        (PgetlError(ErrorKind.TABLE_REWRITTEN, "-", table="t"), True),
        (PgetlError(ErrorKind.COPY_DIED, "-", table="t"), True),
        (PgetlError(ErrorKind.COPY_DIED, "the snapshot is gone"), False),
        (Fenced("-", table="t"), True),
        (Fenced("-"), False),
        (PgetlError(ErrorKind.CONNECTION, "-", table="t"), False),
        (PgetlError(ErrorKind.RESOURCES, "-", table="t"), False),
        (PgetlError(ErrorKind.AUTHENTICATION, "-"), False),
    ],
)
def test_trouble_with_a_server_concerns_all(error: PgetlError, *, alone: bool) -> None:
    assert concerns_one_table(error) is alone


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        (ErrorKind.TABLE_REWRITTEN, RetryPolicy("timed", 105.0)),
        (ErrorKind.CONNECTION, RetryPolicy("timed", 105.0)),
        (ErrorKind.VALUE, RetryPolicy("manual")),
        (ErrorKind.CONFIG, RetryPolicy("none")),
    ],
)
def test_the_table_of_errors_says_who_retries(kind: ErrorKind, policy: RetryPolicy) -> None:
    assert retry_policy(PgetlError(kind, "-"), history(DataSync()), 100.0) == policy


def test_each_failure_doubles_the_delay_until_a_copy_succeeds() -> None:
    failed = (DataSync(), Errored("-"))

    assert [delay(history(*failed * times)) for times in (0, 1, 2, 3, 50)] == [5.0, 10.0, 20.0, 40.0, 1800.0]
    assert delay(history(*failed * 3, FinishedCopy(Boundary(1)))) == 5.0
