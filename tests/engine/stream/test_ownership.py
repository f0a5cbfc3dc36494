"""Each change is exactly one stream's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.model.phases import (
    Catchup,
    DataSync,
    Errored,
    FinishedCopy,
    Init,
    Phase,
    Ready,
    SyncDone,
    SyncWait,
    TableState,
)
from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.stream.roles import apply_owns, catching_up, catchup_owns

GROUP = 7
HERE = Boundary(100)
AT, BEFORE = CommitLsn(100), CommitLsn(99)
PHASES: st.SearchStrategy[Phase] = st.sampled_from(
    [
        Init(),
        DataSync(),
        FinishedCopy(HERE),
        SyncWait(HERE),
        Catchup(HERE),
        SyncDone(HERE, HERE),
        Ready(),
        Errored("died"),
    ]
)
LSNS = st.integers(90, 110)


def test_a_ready_table_is_the_apply_stream_s_from_its_position_on() -> None:
    ready = TableState(Ready(), attempt=GROUP)
    assert apply_owns(ready, HERE, AT)
    assert not apply_owns(ready, HERE, BEFORE)


def test_so_is_one_that_has_arrived() -> None:
    """Not from where it was handed over: up to there nothing had changed. If there is a change now, the source was set
    back since, and the change is the table's."""
    arrived = TableState(SyncDone(Boundary(150), HERE), attempt=GROUP)
    assert apply_owns(arrived, HERE, AT)
    assert not apply_owns(arrived, HERE, BEFORE)
    assert not apply_owns(arrived, Boundary(101), AT)


def test_a_group_s_stream_carries_its_own_tables_alone() -> None:
    state = TableState(FinishedCopy(HERE), attempt=GROUP)
    assert catching_up(state, GROUP)
    assert not catching_up(state, GROUP + 1)
    assert catchup_owns(state, GROUP, HERE, AT)
    assert not catchup_owns(state, GROUP, HERE, BEFORE)


@given(PHASES, LSNS, LSNS)
def test_no_change_has_two_owners_or_is_applied_again(phase: Phase, position: int, commit: int) -> None:
    state = TableState(phase, attempt=GROUP)
    at, lsn = Boundary(position), CommitLsn(commit)
    owners = [apply_owns(state, at, lsn), catchup_owns(state, GROUP, at, lsn)]
    assert sum(owners) <= 1
    assert not any(owners) or not at.covers(lsn)
