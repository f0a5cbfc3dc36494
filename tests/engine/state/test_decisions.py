"""What is tidied and begun, and what a bounded run waits for."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import (
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
)
from airflow_provider_pgetl.engine.model.positions import START, Boundary, HighWater
from airflow_provider_pgetl.engine.model.tables import AlterationPolicy, CopiedSelection, Resync, TableName
from airflow_provider_pgetl.engine.state.decisions import (
    ERRORED_SLOT_SECONDS,
    RESYNC_SECONDS,
    RESYNCS_IN_A_ROW,
    SOON_SECONDS,
    TableFailure,
    apply_slot_needed,
    dead_copies,
    demotions,
    due_retries,
    errored_holders,
    failure_of,
    failure_of_table,
    groups_before,
    groups_to_catch_up,
    groups_under_way,
    known_positions,
    lost_groups,
    marks,
    on_their_way,
    set_back,
    set_back_while_catching_up,
    slots_to_drop,
    states_of,
    tables_to_copy,
    written_and_not_noted,
)
from airflow_provider_pgetl.engine.state.memory_store import MemoryDatabase, MemoryStore
from airflow_provider_pgetl.engine.state.store import DestinationMetadata, TableRecord

NOW = 1_000.0
HERE = Boundary(10)
TABLE = TableName("public", "orders")


def _waits_for(phase: Phase) -> bool:
    return on_their_way({TABLE: TableState(phase)}, NOW) == [TABLE]


def _errored(policy: RetryPolicy) -> Errored:
    return Errored("it was rewritten", None, policy, "DataSync")


@pytest.mark.parametrize("phase", [Init(), DataSync(), FinishedCopy(HERE), SyncDone(HERE, HERE)], ids=repr)
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


# -- what is tidied and begun: tables by the order of their phases ----------------------------------------------------

EVERY: dict[PhaseName, Phase] = {
    "Init": Init(),
    "DataSync": DataSync(),
    "FinishedCopy": FinishedCopy(HERE),
    "SyncWait": SyncWait(HERE, 3),
    "Catchup": Catchup(HERE, 3),
    "SyncDone": SyncDone(HERE, HERE),
    "Ready": Ready(),
}
BY_NAME = {name: TableName("public", name) for name in EVERY}
OTHER = TableName("public", "other")
TIMED = RetryPolicy("timed", NOW)


def _each(attempt: int = 7) -> dict[TableName, TableState]:
    """A table in each phase, all of one copy attempt."""
    return {
        BY_NAME[name]: TableState(phase, 1, None if name == "Init" else attempt, HERE) for name, phase in EVERY.items()
    }


def _errored_from(name: PhaseName, attempt: int = 7, policy: RetryPolicy = TIMED) -> dict[TableName, TableState]:
    return {OTHER: TableState(Errored("died", None, policy, name), 1, attempt, HERE)}


def _named(*names: PhaseName) -> set[TableName]:
    return {BY_NAME[name] for name in names}


def test_hand_overs_are_demoted_each_by_its_number() -> None:
    assert demotions(_each()) == dict.fromkeys(_named("SyncWait", "Catchup"), Demoted(1, 3))


def test_a_copy_is_dead_when_its_attempt_is() -> None:
    assert dead_copies(_each(), [7]) == {}
    assert dead_copies(_each(), [6, 8]) == {BY_NAME["DataSync"]: CopyDied(1, 7)}


def test_a_group_is_lost_with_its_slot_until_it_is_handed_over() -> None:
    assert lost_groups(_each(), [7]) == {}
    assert lost_groups(_each(), []) == dict.fromkeys(_named("FinishedCopy", "SyncWait", "Catchup"), GroupLost(1, 7))


@pytest.mark.parametrize(("slots", "alive"), [([7], True), ([], False)])
def test_a_timed_retry_is_a_rollback_when_its_time_has_come(slots: list[int], alive: bool) -> None:
    states = _errored_from("Catchup")
    assert due_retries(states, NOW - 1, slots) == {}
    assert due_retries(states, NOW, slots) == {OTHER: RolledBack(1, slot_alive=alive)}
    assert due_retries(_errored_from("Catchup", policy=RetryPolicy("manual")), NOW, slots) == {}


@pytest.mark.parametrize("name", ["FinishedCopy", "Catchup", "Ready"])
def test_a_table_that_failed_at_what_is_in_the_stream_is_copied_anew_when_its_time_has_come(name: PhaseName) -> None:
    """Its group's slot holds the same change still."""
    states = _errored_from(name, policy=RetryPolicy("timed", NOW, anew=True))
    assert due_retries(states, NOW - 1, [7]) == {}
    assert due_retries(states, NOW, [7]) == {OTHER: Reset(1)}


def test_only_what_is_in_init_is_copied() -> None:
    assert tables_to_copy(_each()) == [BY_NAME["Init"]]


@pytest.mark.parametrize("name", ["FinishedCopy", "SyncWait", "Catchup"])
def test_a_group_is_caught_up_wherever_its_last_stream_ended(name: PhaseName) -> None:
    states = {OTHER: TableState(EVERY[name], 1, 7, HERE)}
    assert groups_to_catch_up(states, [7], []) == [7]
    assert groups_to_catch_up(states, [7], [7]) == []
    assert groups_to_catch_up(states, [], []) == []


def test_a_group_waits_for_all_of_its_copy() -> None:
    assert groups_to_catch_up(_each(), [7], []) == []


@pytest.mark.parametrize("name", EVERY)
def test_a_slot_is_dropped_when_neither_attempt_nor_table_needs_it(name: PhaseName) -> None:
    needs = name in ("FinishedCopy", "SyncWait", "Catchup")
    for states in ({OTHER: TableState(EVERY[name], 1, 7, HERE)}, _errored_from(name)):
        assert slots_to_drop(states, [7], []) == ([] if needs else [7])
        assert slots_to_drop(states, [7], [7]) == []


def test_a_group_takes_room_while_it_is_copied_or_catches_up() -> None:
    """One of which only an Errored table is left may wait for a person: nobody waits with it."""
    states = {**_each(7), **_errored_from("Catchup", 8)}
    assert groups_under_way(states, [9]) == 2
    assert groups_under_way(_errored_from("Catchup", 8), []) == 0
    assert groups_before(9, states, [9, 10]) == 1


def test_an_errored_table_alone_does_not_hold_wal_for_ever() -> None:
    alone = _errored_from("Catchup", 8)
    assert errored_holders(alone, [8], {}, NOW) == {OTHER: Reset(1)}
    assert errored_holders(alone, [], {}, NOW) == {}
    assert errored_holders({**alone, **_each(8)}, [8], {}, NOW) == {}
    assert errored_holders(_errored_from("Ready", 8), [8], {}, NOW) == {}


def test_an_errored_table_alone_does_not_keep_a_slot_for_ever() -> None:
    alone, since = _errored_from("Catchup", 8), {OTHER: NOW}
    assert errored_holders(alone, [], since, NOW + ERRORED_SLOT_SECONDS) == {OTHER: Reset(1)}
    assert errored_holders(alone, [], since, NOW + ERRORED_SLOT_SECONDS - 1) == {}
    assert errored_holders({**alone, **_each(8)}, [], since, NOW + ERRORED_SLOT_SECONDS) == {}


def test_a_table_was_seen_at_least_where_its_copy_was_read() -> None:
    copied, seen, new = TableName("s", "copied"), TableName("s", "seen"), TableName("s", "new")
    records = {
        copied: TableRecord(copied, TableState(FinishedCopy(Boundary(50)), attempt=3)),
        seen: TableRecord(seen, TableState(Ready(), attempt=3), high_water=HighWater(3, Boundary(70))),
        new: TableRecord(new),
    }
    place = DestinationMetadata(copied, Boundary(50))
    assert marks(records, {copied: place, seen: place, new: None}) == {
        copied: Boundary(50),
        seen: Boundary(70),
        new: START,
    }


def test_a_followed_table_before_where_it_was_seen_is_in_a_restored_destination() -> None:
    marks = dict.fromkeys(BY_NAME.values(), Boundary(20))
    behind, there = Boundary(19), Boundary(20)
    assert set_back(_each(), dict.fromkeys(BY_NAME.values(), there), marks) == []
    assert set(set_back(_each(), dict.fromkeys(BY_NAME.values(), behind), marks)) == _named("SyncDone", "Ready")


def test_by_the_store_alone_tables_that_were_copied_stand_at_their_marks_and_no_less_than_their_phase_says() -> None:
    marks = dict.fromkeys(BY_NAME.values(), Boundary(5))
    marked = dict.fromkeys((BY_NAME[name] for name in ("FinishedCopy", "SyncWait", "Catchup", "Ready")), Boundary(5))
    assert known_positions(_each(), marks) == {**marked, BY_NAME["SyncDone"]: HERE}


def test_a_table_of_a_group_before_where_it_was_seen_is_copied_again() -> None:
    """So is one that the destination does not know any more, as it was restored to before the copy."""
    states = _each(7)
    catching_up = {BY_NAME[name] for name in ("FinishedCopy", "SyncWait", "Catchup")}
    marks = dict.fromkeys(BY_NAME.values(), Boundary(20))
    there = dict.fromkeys(BY_NAME.values(), Boundary(20))
    assert set_back_while_catching_up(states, 7, there, marks) == {}
    assert set_back_while_catching_up(states, 8, {}, marks) == {}
    for behind in ({}, dict.fromkeys(there, Boundary(19))):
        lost = set_back_while_catching_up(states, 7, behind, marks)
        assert lost == dict.fromkeys(catching_up, GroupLost(1, 7))
    truncated = dict.fromkeys(there, Boundary(HERE.lsn - 1))
    assert set_back_while_catching_up(states, 7, truncated, truncated) == {}


def test_one_that_has_just_arrived_stands_at_least_where_it_was_handed_over() -> None:
    before = Boundary(HERE.lsn - 1)
    assert set_back(_each(), dict.fromkeys(BY_NAME.values(), before), {}) == [BY_NAME["SyncDone"]]


@pytest.mark.parametrize("name", EVERY)
def test_the_apply_slot_holds_history_for_what_was_copied(name: PhaseName) -> None:
    needed = name not in ("Init", "DataSync")
    assert apply_slot_needed({OTHER: TableState(EVERY[name])}) == needed
    assert apply_slot_needed(_errored_from(name)) == needed


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (FinishedCopy(HERE), {Boundary(30)}),
        (SyncDone(Boundary(40), Boundary(30)), {Boundary(30)}),
        (Ready(), {Boundary(30)}),
        (DataSync(), set()),
        (Errored("broken"), set()),
    ],
)
def test_a_write_that_nobody_has_noted_is_a_stream_s(phase: Phase, expected: set[Boundary]) -> None:
    states = {TABLE: TableState(phase, attempt=7)}
    assert written_and_not_noted(states, {TABLE: Boundary(30)}, {TABLE: Boundary(20)}) == expected
    assert written_and_not_noted(states, {TABLE: Boundary(30)}, {TABLE: Boundary(30)}) == set()
    assert written_and_not_noted(states, {}, {TABLE: Boundary(20)}) == set()


# -- What a table's Errored phase says of the error that it comes of. --------------------------------------------------


def test_what_the_state_could_not_keep_is_left_out() -> None:
    error = PgetlError(ErrorKind.DAMAGED, "expected value, found \0\0PAR1")
    assert failure_of(error, 0.0).reason == "expected value, found PAR1"


def test_when_it_is_tried_again_is_the_error_s() -> None:
    assert failure_of(PgetlError(ErrorKind.VALUE, "x"), 10.0).retry_policy == RetryPolicy("manual")
    assert failure_of(PgetlError(ErrorKind.COPY_DIED, "x"), 10.0).retry_policy == RetryPolicy("timed", 40.0)
    assert failure_of(PgetlError(ErrorKind.UNSENT_VALUE, "x"), 10.0).retry_policy == RetryPolicy(
        "timed", 40.0, anew=True
    )


# -- Tables that are copied again by themselves, because an ALTER could not be carried over. ---------------------------


class _Altered:
    """A followed table, in a store whose clock is driven."""

    def __init__(self, resync: Resync) -> None:
        self.seconds = NOW
        self.store = MemoryStore("shop", MemoryDatabase(lambda: self.seconds))
        selection = CopiedSelection(None, None, False, TABLE, policy=AlterationPolicy(resync))
        self.store.register(TABLE, 7, 70, selection)
        self._attempt = 0

    def send(self, event: Callable[[int], Event]) -> None:
        (record,) = self.store.tables().values()
        answer = self.store.apply({TABLE: event(record.state.generation)})
        assert not isinstance(answer, Refused), answer

    def fail(self, kind: ErrorKind = ErrorKind.ALTERED) -> TableFailure:
        """Returns what becomes of the table; one that is to be copied again goes back to Init."""
        failure = failure_of_table(self.store, TABLE, PgetlError(kind, "It was altered.", remedy="Copy it."))
        self.send(lambda generation: Failed(generation, failure.reason, failure.solution, failure.retry_policy))
        if failure.retry_policy.anew:
            due = due_retries(states_of(self.store), self.seconds, ())
            assert due == {TABLE: Reset(self.store.tables()[TABLE].state.generation)}
            self.store.apply(due)
        return failure

    def copy(self) -> None:
        self._attempt += 1
        self.send(lambda generation: CopyStarted(generation, self._attempt))
        self.send(lambda generation: CopyFinished(generation, self._attempt, HERE))

    def arrive(self) -> None:
        self.copy()
        self.send(lambda generation: CameNear(generation, HERE))
        self.send(lambda generation: TargetChosen(generation, HERE))
        self.send(lambda generation: CaughtUp(generation, HERE, HERE))
        self.send(lambda generation: TakenOver(generation, HERE))


def test_an_altered_table_waits_for_a_person_unless_it_is_declared_otherwise() -> None:
    table = _Altered("manual")
    table.arrive()
    assert table.fail() == TableFailure("It was altered.", "Copy it.", RetryPolicy("manual"))
    table = _Altered("on_incompatible_change")
    table.arrive()
    assert table.fail(ErrorKind.VALUE).retry_policy == RetryPolicy("manual"), "another copy would meet it too"


def test_an_altered_table_is_copied_again_at_once_and_not_again_within_the_hour() -> None:
    table = _Altered("on_incompatible_change")
    table.arrive()
    first = table.fail()
    assert first.retry_policy == RetryPolicy("timed", NOW, anew=True)
    assert "copied again by itself" in (first.solution or "")
    table.arrive()
    table.seconds += RESYNC_SECONDS - 1
    second = table.fail()
    assert second.retry_policy == RetryPolicy("manual")
    assert second.solution == (
        "It was Ready for 59 min 59 s since it was last copied again by itself, which is done once an hour. Copy it."
    )
    table.send(Reset)
    table.arrive()
    table.seconds += 1
    assert table.fail().retry_policy.anew, "an hour has passed, whatever a person has done meanwhile"


def test_an_altered_table_that_never_becomes_ready_is_copied_again_three_times() -> None:
    table = _Altered("on_incompatible_change")
    table.arrive()
    for _ in range(RESYNCS_IN_A_ROW):
        assert table.fail().retry_policy.anew
        table.copy()
    last = table.fail()
    assert last.retry_policy == RetryPolicy("manual")
    assert (last.solution or "").startswith("It was copied again by itself 3 times in a row, and never became Ready. ")
    table.send(Reset)
    table.arrive()
    table.seconds += RESYNC_SECONDS
    assert table.fail().retry_policy.anew
