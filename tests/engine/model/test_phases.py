"""The phases of a table: one function moves it, and says why it does not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.model.phases import (
    CATCHING_UP,
    ERRORED,
    CameNear,
    Catchup,
    CaughtUp,
    CopyDied,
    CopyFinished,
    CopyStarted,
    DataSync,
    Demoted,
    Errored,
    Event,
    Failed,
    FinishedCopy,
    GroupLost,
    Init,
    Phase,
    PhaseName,
    Ready,
    Refused,
    Reset,
    RetryPolicy,
    RolledBack,
    SyncDone,
    SyncWait,
    TableState,
    TakenOver,
    TargetChosen,
    handover_of,
    is_followed,
    needs_group_slot,
    past_init,
    phase_from_json,
    phase_name,
    phase_to_json,
    transition,
)
from airflow_provider_pgetl.engine.model.positions import Boundary

SNAPSHOT, NEAR, TARGET, REACHED = (Boundary(lsn) for lsn in (100, 150, 200, 210))

# -- strategies: few values, so that they meet ------------------------------------------------------------------------

BOUNDARIES = st.sampled_from([SNAPSHOT, NEAR, TARGET, REACHED])
SMALL = st.integers(1, 3)
NAMES = st.sampled_from(get_args(PhaseName))
POLICIES = st.builds(
    RetryPolicy, st.sampled_from(["timed", "manual", "none"]), st.none() | st.floats(0, 1e9), st.booleans()
)
REASONS = st.sampled_from(["", "died", 'so "it" said;\n'])
PHASES: st.SearchStrategy[Phase] = st.one_of(
    st.just(Init()),
    st.just(DataSync()),
    st.builds(FinishedCopy, BOUNDARIES, SMALL),
    st.builds(SyncWait, BOUNDARIES, SMALL),
    st.builds(Catchup, BOUNDARIES, SMALL),
    st.builds(SyncDone, BOUNDARIES, BOUNDARIES),
    st.just(Ready()),
    st.builds(Errored, REASONS, st.none() | REASONS, POLICIES, NAMES),
)
STATES = st.builds(TableState, PHASES, SMALL, st.none() | SMALL, st.none() | BOUNDARIES)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(CopyStarted, SMALL, SMALL, st.none() | st.integers(0, 3)),
    st.builds(CopyFinished, SMALL, SMALL, BOUNDARIES),
    st.builds(CopyDied, SMALL, SMALL),
    st.builds(GroupLost, SMALL, SMALL),
    st.builds(CameNear, SMALL, BOUNDARIES, SMALL),
    st.builds(TargetChosen, SMALL, BOUNDARIES, SMALL),
    st.builds(CaughtUp, SMALL, BOUNDARIES, BOUNDARIES, SMALL),
    st.builds(TakenOver, SMALL, BOUNDARIES),
    st.builds(Demoted, SMALL, SMALL),
    st.builds(Failed, SMALL, REASONS, st.none() | REASONS, POLICIES, st.none() | SMALL),
    st.builds(RolledBack, SMALL, st.booleans(), st.sampled_from([None, CATCHING_UP, ERRORED])),
    st.builds(Reset, SMALL),
)


def _after(*events: Event) -> TableState:
    """A new table after these events, each of which must take effect."""
    state = TableState()
    for event in events:
        taken = transition(state, event)
        assert isinstance(taken, TableState), (state, event, taken)
        state = taken
    return state


COPIED = (CopyStarted(1, 7), CopyFinished(1, 7, SNAPSHOT))
WAITING = (*COPIED, CameNear(1, NEAR))
TARGETED = (*WAITING, TargetChosen(1, TARGET))
DONE = (*TARGETED, CaughtUp(1, REACHED, NEAR))
FOLLOWED = (*DONE, TakenOver(1, REACHED))
WAY: list[tuple[tuple[Event, ...], PhaseName]] = [
    ((), "Init"),
    ((CopyStarted(1, 7),), "DataSync"),
    (COPIED, "FinishedCopy"),
    (WAITING, "SyncWait"),
    (TARGETED, "Catchup"),
    (DONE, "SyncDone"),
    (FOLLOWED, "Ready"),
]


# -- what holds for every state and event -----------------------------------------------------------------------------


@given(STATES, EVENTS)
def test_every_event_is_answered_in_every_state(state: TableState, event: Event) -> None:
    answer = transition(state, event)
    if isinstance(answer, Refused):
        assert answer.why


@given(STATES, EVENTS)
def test_an_event_of_another_generation_is_refused(state: TableState, event: Event) -> None:
    if event.generation != state.generation:
        assert isinstance(transition(state, event), Refused)


@given(STATES, EVENTS)
def test_an_event_that_comes_twice_takes_effect_once(state: TableState, event: Event) -> None:
    """The second time it changes nothing, or, where the first began a new generation, is refused."""
    once = transition(state, event)
    if isinstance(once, Refused):
        return
    twice = transition(once, event)
    assert twice == once or (isinstance(twice, Refused) and once.generation > state.generation)


@given(STATES, EVENTS)
def test_generations_only_rise_and_only_by_one(state: TableState, event: Event) -> None:
    answer = transition(state, event)
    if isinstance(answer, TableState):
        back = isinstance(event, RolledBack | Reset | CopyDied | GroupLost)
        assert answer.generation == state.generation + back


@given(st.lists(EVENTS, max_size=30))
def test_a_table_of_any_history_has_what_its_phase_needs(events: list[Event]) -> None:
    """A copied table knows its attempt and its snapshot; positions on its way never fall behind that snapshot."""
    state = TableState()
    for event in events:
        answer = transition(state, replace(event, generation=state.generation))
        state = answer if isinstance(answer, TableState) else state
        if past_init(state):
            assert state.attempt is not None
            assert state.copied is not None
        match state.phase:
            case FinishedCopy(boundary) | SyncWait(boundary) | Catchup(boundary) | SyncDone(boundary, _):
                assert state.copied is not None
                assert boundary >= state.copied
            case _:
                pass


# -- the way of a table -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("events", "name"), WAY, ids=[name for _, name in WAY])
def test_a_table_goes_through_every_phase(events: tuple[Event, ...], name: PhaseName) -> None:
    assert phase_name(_after(*events).phase) == name


def test_no_step_of_the_way_can_be_left_out() -> None:
    for at, (events, _) in enumerate(WAY):
        for step in FOLLOWED[at + 1 :]:
            assert isinstance(transition(_after(*events), step), Refused)


@pytest.mark.parametrize(
    ("events", "event"),
    [
        (COPIED, CameNear(1, Boundary(SNAPSHOT.lsn - 1))),
        (WAITING, TargetChosen(1, Boundary(NEAR.lsn - 1))),
        (TARGETED, CaughtUp(1, Boundary(TARGET.lsn - 1), NEAR)),
        (TARGETED, CaughtUp(1, REACHED, Boundary(REACHED.lsn + 1))),
        (DONE, TakenOver(1, Boundary(REACHED.lsn - 1))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_step_is_at_or_behind_the_one_before(events: tuple[Event, ...], event: Event) -> None:
    assert isinstance(transition(_after(*events), event), Refused)


@pytest.mark.parametrize("said", [CameNear(1, SNAPSHOT), TargetChosen(1, REACHED), CaughtUp(1, TARGET, NEAR)], ids=repr)
def test_what_was_said_once_is_not_said_otherwise(said: Event) -> None:
    """A second, different word of the same kind comes too late."""
    at = {CameNear: WAITING, TargetChosen: TARGETED, CaughtUp: DONE}[type(said)]
    assert isinstance(transition(_after(*at), said), Refused)


# -- copies -----------------------------------------------------------------------------------------------------------


def test_a_later_attempt_takes_a_table_over_and_an_earlier_one_does_not() -> None:
    copying = _after(CopyStarted(1, 7))
    assert transition(copying, CopyStarted(1, 8)) == replace(copying, attempt=8)
    assert isinstance(transition(copying, CopyStarted(1, 6)), Refused)


@pytest.mark.parametrize("said", [CopyFinished(1, 7, SNAPSHOT), Failed(1, "it broke", attempt=7)], ids=repr)
def test_what_a_superseded_attempt_says_is_refused(said: Event) -> None:
    assert isinstance(transition(_after(CopyStarted(1, 7), CopyStarted(1, 8)), said), Refused)


def test_a_copy_that_died_is_begun_anew_unless_it_was_published_after_all() -> None:
    died = CopyDied(1, 7)
    assert transition(_after(CopyStarted(1, 7)), died) == TableState(generation=2)
    assert isinstance(transition(_after(CopyStarted(1, 7), CopyStarted(1, 8)), died), Refused)
    assert isinstance(transition(_after(*COPIED), died), Refused)


@pytest.mark.parametrize(("events", "name"), WAY, ids=[name for _, name in WAY])
def test_a_group_that_lost_its_slot_is_copied_anew_unless_it_was_handed_over(
    events: tuple[Event, ...], name: PhaseName
) -> None:
    answer = transition(_after(*events), GroupLost(1, 7))
    assert answer == TableState(generation=2) if name in CATCHING_UP else isinstance(answer, Refused)


# -- hand-overs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("events", [WAITING, TARGETED], ids=["SyncWait", "Catchup"])
def test_a_hand_over_that_is_given_up_begins_again_from_the_copy(events: tuple[Event, ...]) -> None:
    demoted = transition(_after(*events), Demoted(1, 1))
    assert demoted == replace(_after(*COPIED), phase=FinishedCopy(SNAPSHOT, 2))


@pytest.mark.parametrize("late", [CameNear(1, NEAR), TargetChosen(1, TARGET), CaughtUp(1, REACHED, NEAR), Demoted(1)])
def test_what_was_said_in_a_hand_over_that_was_given_up_is_void(late: Event) -> None:
    """Else the apply stream, which has read on since, would be taken to wait at a target chosen long ago."""
    again = _after(*TARGETED, Demoted(1, 1), CameNear(1, NEAR, 2))
    targeted = _after(*TARGETED, Demoted(1, 1), CameNear(1, NEAR, 2), TargetChosen(1, TARGET, 2))
    assert handover_of(again) == handover_of(targeted) == 2
    for state in (again, targeted):
        assert isinstance(transition(state, late), Refused)
    assert isinstance(transition(targeted, CaughtUp(1, REACHED, NEAR, 2)), TableState)


def test_what_is_done_cannot_be_given_up() -> None:
    for events in (DONE, FOLLOWED):
        assert isinstance(transition(_after(*events), Demoted(1, 1)), Refused)


# -- errors and ways back ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("events", "name"), WAY, ids=[name for _, name in WAY])
def test_an_error_remembers_where_it_struck(events: tuple[Event, ...], name: PhaseName) -> None:
    policy = RetryPolicy("timed", 12.5)
    state = _after(*events)
    failed = transition(state, Failed(1, "died", "wait", policy))
    assert failed == replace(state, phase=Errored("died", "wait", policy, name))
    assert transition(_after(*events, Failed(1, "died")), Failed(1, "again")) == _after(*events, Failed(1, "died"))


@pytest.mark.parametrize("struck", [False, True], ids=["well", "errored"])
@pytest.mark.parametrize(("events", "name"), WAY, ids=[name for _, name in WAY])
def test_rolling_back_goes_to_the_last_safe_phase(events: tuple[Event, ...], name: PhaseName, struck: bool) -> None:
    """Until the hand-over to the copy, if its slot lives; from SyncDone on to the beginning, for the apply stream may
    have written."""
    state = _after(*events, Failed(1, "died")) if struck else _after(*events)
    expected = TableState(FinishedCopy(SNAPSHOT), 2, 7, SNAPSHOT) if name in CATCHING_UP else TableState(generation=2)
    assert transition(state, RolledBack(1, slot_alive=True)) == expected
    assert transition(state, RolledBack(1, slot_alive=False)) == TableState(generation=2)
    assert transition(state, Reset(1)) == TableState(generation=2)


@pytest.mark.parametrize(("events", "name"), WAY, ids=[name for _, name in WAY])
def test_rolling_back_from_some_phases_leaves_a_table_in_the_others_alone(
    events: tuple[Event, ...], name: PhaseName
) -> None:
    """Whoever decides it looked a while ago, and a table may have come further without a new generation."""
    well, struck = _after(*events), _after(*events, Failed(1, "died"))
    assert isinstance(transition(well, RolledBack(1, only=ERRORED)), Refused)
    assert transition(struck, RolledBack(1, only=ERRORED)) == transition(struck, RolledBack(1))
    assert isinstance(transition(well, RolledBack(1, only=CATCHING_UP)), Refused) == (name not in CATCHING_UP)


# -- predicates -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("struck", [False, True], ids=["well", "errored"])
@pytest.mark.parametrize(("events", "name"), WAY, ids=[name for _, name in WAY])
def test_an_error_changes_nothing_about_which_slot_is_needed(
    events: tuple[Event, ...], name: PhaseName, struck: bool
) -> None:
    state = _after(*events, Failed(1, "died")) if struck else _after(*events)
    assert needs_group_slot(state) == (name in ("FinishedCopy", "SyncWait", "Catchup"))
    assert is_followed(state) == (name in ("SyncDone", "Ready"))
    assert past_init(state) == (name not in ("Init", "DataSync"))


# -- JSON -------------------------------------------------------------------------------------------------------------


@given(PHASES)
def test_a_phase_survives_json(phase: Phase) -> None:
    assert phase_from_json(json.loads(json.dumps(phase_to_json(phase)))) == phase


@pytest.mark.parametrize(
    ("stored", "phase"),
    [
        ({"phase": "FinishedCopy", "boundary": "0/64"}, FinishedCopy(SNAPSHOT, 1)),
        ({"phase": "SyncWait", "position": "0/64"}, SyncWait(SNAPSHOT, 1)),
        ({"phase": "Catchup", "boundary": "0/64"}, Catchup(SNAPSHOT, 1)),
    ],
    ids=repr,
)
def test_a_phase_that_was_stored_without_a_number_is_in_its_first_hand_over(
    stored: dict[str, Any], phase: Phase
) -> None:
    assert phase_from_json(stored) == phase
