"""What a bounded run waits for."""

import pytest

from airflow_provider_pgetl.engine.phases import (
    DataSync,
    Errored,
    FinishedCopy,
    Init,
    Phase,
    Ready,
    RetryPolicy,
    SyncDone,
    TableState,
)
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.sync.upkeep import SOON_SECONDS, on_their_way
from airflow_provider_pgetl.engine.tables import TableName

NOW = 1_000.0
HERE = Boundary(10)
TABLE = TableName("public", "orders")


def _waits_for(phase: Phase) -> bool:
    return on_their_way({TABLE: TableState(phase)}, NOW) == [TABLE]


def _errored(policy: RetryPolicy) -> Errored:
    return Errored("it was rewritten", None, policy, "DataSync")


@pytest.mark.parametrize("phase", [Init(), DataSync(), FinishedCopy(HERE), SyncDone(HERE)], ids=repr)
def test_a_table_before_ready_is_waited_for(phase: Phase) -> None:
    assert _waits_for(phase)
    assert not _waits_for(Ready())


def test_a_table_that_is_copied_again_soon_is_waited_for() -> None:
    assert _waits_for(_errored(RetryPolicy("timed", NOW + SOON_SECONDS)))
    assert _waits_for(_errored(RetryPolicy("timed", NOW - 1)))


def test_one_that_is_copied_again_much_later_is_not() -> None:
    assert not _waits_for(_errored(RetryPolicy("timed", NOW + SOON_SECONDS + 1)))


@pytest.mark.parametrize("kind", ["manual", "none"])
def test_one_that_waits_for_a_person_is_not(kind: str) -> None:
    assert not _waits_for(_errored(RetryPolicy(kind)))  # type: ignore[arg-type]  # both are kinds
