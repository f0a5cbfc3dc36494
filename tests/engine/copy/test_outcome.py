"""Which tables share a snapshot."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.copy.outcome import concerns_one_table, delay, form_groups, judged, retry_policy
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
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
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.protocol import HistoryEntry

LIMIT = 100
sizes_of_tables = st.dictionaries(
    st.builds(TableName, st.sampled_from(["a", "b"]), st.text(max_size=3)), st.integers(0, 3 * LIMIT), max_size=30
)


def names(**sizes: int) -> dict[TableName, int]:
    return {TableName("public", name): size for name, size in sizes.items()}


def test_a_big_table_is_alone_and_small_ones_share() -> None:
    groups = form_groups(names(big=500, small=30, tiny=1, half=60), LIMIT)

    assert [[table.name for table in group] for group in groups] == [["big"], ["half", "small", "tiny"]]


def test_no_tables_no_groups() -> None:
    assert form_groups({}, LIMIT) == []


@given(sizes_of_tables)
def test_every_table_is_in_exactly_one_group(sizes: Mapping[TableName, int]) -> None:
    grouped = [table for group in form_groups(sizes, LIMIT) for table in group]

    assert sorted(grouped) == sorted(sizes)


@given(sizes_of_tables)
def test_only_single_tables_exceed_the_limit(sizes: Mapping[TableName, int]) -> None:
    for group in form_groups(sizes, LIMIT):
        assert len(group) == 1 or sum(sizes[table] for table in group) <= LIMIT


@given(sizes_of_tables)
def test_no_two_groups_fit_into_one(sizes: Mapping[TableName, int]) -> None:
    filled = sorted(sum(sizes[table] for table in group) for group in form_groups(sizes, LIMIT))

    assert len(filled) < 2 or filled[0] + filled[1] > LIMIT


@given(sizes_of_tables, st.randoms(use_true_random=False))
def test_the_order_of_declaration_does_not_matter(sizes: Mapping[TableName, int], shuffler: random.Random) -> None:
    shuffled = list(sizes.items())
    shuffler.shuffle(shuffled)

    assert form_groups(dict(shuffled), LIMIT) == form_groups(sizes, LIMIT)


# -- Whom a failure concerns, and when the table is tried again. -------------------------------------------------------


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
        (ErrorKind.REWRITTEN_AGAIN, RetryPolicy("manual")),
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
