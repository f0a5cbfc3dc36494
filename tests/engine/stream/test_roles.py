"""The apply stream in a hand-over, and what it takes over."""

from __future__ import annotations

from airflow_provider_pgetl.engine.model.phases import (
    Catchup,
    Demoted,
    FinishedCopy,
    Init,
    Ready,
    SyncDone,
    SyncWait,
    TakenOver,
    TargetChosen,
)
from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn, HighWater, Seen, Transaction
from airflow_provider_pgetl.engine.stream.core import Beginning, Pace
from airflow_provider_pgetl.engine.stream.messages import AskPosition, RecordCeiling, RecordEvents, Write
from airflow_provider_pgetl.engine.stream.roles import ApplyCore
from tests.engine.stream.driven import GROUP, ITEMS, LINES, ORDERS, SNAPSHOT, Driven, at

START, NEAR, ARRIVED = Boundary(200), Boundary(190), Boundary(210)
PACE = Pace(handover_patience=60.0)


def _apply() -> Driven:
    """Orders are Ready, items and lines were copied by one group."""
    states = {ORDERS: at(Ready(), attempt=3), ITEMS: at(FinishedCopy(SNAPSHOT)), LINES: at(FinishedCopy(SNAPSHOT))}
    return Driven(ApplyCore(Beginning(START, states, {ORDERS: START}), START, PACE))


def _asked(driven: Driven) -> None:
    driven.move(items=at(SyncWait(NEAR)), lines=at(SyncWait(NEAR)))


def test_a_group_is_given_one_target_at_or_behind_both_streams() -> None:
    driven = _apply()
    _asked(driven)
    chosen = TargetChosen(1, START)
    assert driven.said(RecordEvents) == [RecordEvents({ITEMS: chosen, LINES: chosen})]
    ahead = _apply()
    ahead.move(items=at(SyncWait(Boundary(300))), lines=at(SyncWait(Boundary(300))))
    assert [set(record.events.values()) for record in ahead.said(RecordEvents)] == [{TargetChosen(1, Boundary(300))}]


def test_nothing_is_read_from_the_asking_until_the_store_shows_the_group_elsewhere() -> None:
    driven = _apply()
    assert driven.reads()
    _asked(driven)
    assert not driven.reads()
    driven.move(items=at(Catchup(START)), lines=at(Catchup(START)))
    assert not driven.reads()
    driven.move(items=at(SyncDone(ARRIVED, ARRIVED)), lines=at(SyncDone(ARRIVED, ARRIVED)))
    assert driven.reads()


def test_a_table_that_arrives_is_written_to_from_the_position_that_it_has() -> None:
    """Not from where it was handed over: what did not change meanwhile was not written to."""
    driven = _apply()
    _asked(driven)
    driven.move(items=at(SyncDone(ARRIVED, SNAPSHOT)), lines=at(SyncDone(ARRIVED, ARRIVED)))
    driven.receive(ARRIVED.lsn, ARRIVED.lsn + 50, ITEMS, LINES)
    (write,) = driven.said(Write)
    assert {table: move.expected for table, move in write.moves.items()} == {ITEMS: SNAPSHOT, LINES: ARRIVED}


def test_a_transaction_that_is_open_is_read_to_its_end_first() -> None:
    driven = _apply()
    driven.core.begin(CommitLsn(200))
    _asked(driven)
    assert driven.reads()
    assert driven.said(RecordEvents) == []
    driven.core.commit(ARRIVED)
    assert not driven.reads()
    assert [set(record.events.values()) for record in driven.said(RecordEvents)] == [{TargetChosen(1, ARRIVED)}]


def test_a_hand_over_does_not_wait_for_the_write_interval() -> None:
    driven = _apply()
    driven.core.pace = Pace(write_interval=100.0)
    for commit in (200, 210):
        driven.receive(commit, commit + 10, ORDERS)
        driven.said(Write)
        driven.core.written()
    driven.receive(220, 230, ORDERS)
    assert driven.said(Write) == []
    _asked(driven)
    assert len(driven.said(Write)) == 1


def test_who_does_not_arrive_is_demoted_and_put_off_for_as_long() -> None:
    driven = _apply()
    _asked(driven)
    driven.said(RecordEvents)
    driven.move(items=at(Catchup(START)), lines=at(Catchup(START)))
    driven.pass_time(61)
    assert driven.said(RecordEvents) == [RecordEvents({ITEMS: Demoted(1, 1), LINES: Demoted(1, 1)})]
    assert not driven.reads()
    driven.move(items=at(FinishedCopy(SNAPSHOT, 2)), lines=at(FinishedCopy(SNAPSHOT, 2)))
    driven.move(items=at(SyncWait(NEAR, 2)), lines=at(SyncWait(NEAR, 2)))
    assert driven.reads()
    assert driven.said(RecordEvents) == []
    driven.pass_time(61)
    assert not driven.reads()
    assert [set(record.events.values()) for record in driven.said(RecordEvents)] == [{TargetChosen(1, START, 2)}]


def test_each_group_has_its_own_patience() -> None:
    """One that has just asked does not pay for one that was waited for in vain."""
    driven = _apply()
    driven.move(items=at(Catchup(START)), lines=at(FinishedCopy(SNAPSHOT), attempt=9))
    driven.core.commands()
    driven.pass_time(59)
    driven.move(lines=at(SyncWait(NEAR), attempt=9))
    driven.said(RecordEvents)
    driven.pass_time(2)
    assert driven.said(RecordEvents) == [RecordEvents({ITEMS: Demoted(1, 1), LINES: TargetChosen(1, START)})]


def test_a_table_that_arrived_is_owned_from_its_boundary_on() -> None:
    driven = _apply()
    driven.move(items=at(SyncDone(ARRIVED, ARRIVED)), lines=at(SyncDone(ARRIVED, ARRIVED)))
    assert not driven.core.owns(ITEMS, CommitLsn(ARRIVED.lsn - 1))
    assert driven.core.owns(ITEMS, CommitLsn(ARRIVED.lsn))
    driven.receive(210, 220, ITEMS)
    assert [write.moves[ITEMS].expected for write in driven.said(Write)] == [ARRIVED]


def _note_marks(driven: Driven) -> None:
    for told in driven.said(RecordCeiling):
        driven.core.ceiling_recorded(told.boundary)


def test_a_table_is_ready_only_when_the_store_has_noted_where_it_stands() -> None:
    """A Ready table in a restored destination is known by that alone."""
    driven = _apply()
    driven.core.keepalive(ARRIVED)
    _note_marks(driven)
    driven.move(items=at(SyncDone(ARRIVED, ARRIVED)))
    assert driven.said(RecordEvents) == []
    (told,) = driven.said(RecordCeiling)
    assert told.positions[ITEMS] == HighWater(GROUP, ARRIVED)
    driven.core.ceiling_failed()
    driven.pass_time(60)
    assert driven.said(RecordEvents) == []
    _note_marks(driven)
    assert driven.said(RecordEvents) == [RecordEvents({ITEMS: TakenOver(1, ARRIVED)})]


def test_a_table_that_did_not_change_is_ready_when_its_own_position_is_noted() -> None:
    driven = _apply()
    driven.core.keepalive(ARRIVED)
    driven.move(items=at(SyncDone(ARRIVED, SNAPSHOT)))
    _note_marks(driven)
    assert driven.said(RecordEvents) == [RecordEvents({ITEMS: TakenOver(1, ARRIVED)})]


def test_it_is_ready_when_this_stream_is_durable_up_to_there() -> None:
    driven = _apply()
    driven.move(items=at(SyncDone(ARRIVED, ARRIVED)), lines=at(SyncDone(ARRIVED, ARRIVED)))
    _note_marks(driven)
    assert driven.said(RecordEvents) == []
    assert driven.said(AskPosition), "an idle server is asked, else nobody would hear that it is"
    driven.core.keepalive(ARRIVED)
    taken = TakenOver(1, ARRIVED)
    assert driven.said(RecordEvents) == [RecordEvents({ITEMS: taken, LINES: taken})]


def test_nobody_becomes_ready_while_this_stream_repeats_what_the_others_have() -> None:
    states = {ORDERS: at(Ready(), attempt=3), ITEMS: at(SyncDone(ARRIVED, ARRIVED))}
    driven = Driven(ApplyCore(Beginning(START, states, {ORDERS: Boundary(400), ITEMS: ARRIVED}), START, PACE))
    driven.core.keepalive(Boundary(300))
    _note_marks(driven)
    assert driven.said(RecordEvents) == []
    driven.core.keepalive(Boundary(400))
    assert driven.said(RecordEvents) == [RecordEvents({ITEMS: TakenOver(1, ARRIVED)})]


def test_a_table_does_not_come_back_while_a_batch_holds_its_former_life() -> None:
    driven = _apply()
    driven.receive(200, 210, ORDERS)
    driven.said(Write)
    driven.receive(210, 220, ORDERS)
    driven.raise_generation(ORDERS, Init(), None)
    driven.move(orders=at(SyncWait(Boundary(220)), generation=2))
    assert driven.said(RecordEvents) == []
    driven.core.written()
    assert driven.said(Write) == [Write(Boundary(220), {})]
    assert [set(record.events) for record in driven.said(RecordEvents)] == [{ORDERS}]


def _not_recognized() -> Driven:
    """Another stream has seen more of the source than the slot says, so it must be read on before anything is done."""
    states = {ORDERS: at(Ready(), attempt=3), ITEMS: at(FinishedCopy(SNAPSHOT)), LINES: at(FinishedCopy(SNAPSHOT))}
    seen = Seen(Boundary(250), Boundary(250), Transaction(CommitLsn(240)))
    return Driven(ApplyCore(Beginning(START, states, {ORDERS: START}, [seen]), START, PACE))


def test_a_group_that_asks_waits_until_the_source_is_recognized() -> None:
    driven = _not_recognized()
    _asked(driven)
    assert driven.reads()
    assert driven.said(RecordEvents) == []
    driven.receive(240, 250)
    assert not driven.reads()
    assert driven.said(RecordEvents) == [RecordEvents(dict.fromkeys((ITEMS, LINES), TargetChosen(1, Boundary(250))))]


def test_a_group_that_has_a_target_and_does_not_arrive_is_demoted_before_the_source_is_recognized() -> None:
    driven = _not_recognized()
    driven.move(items=at(Catchup(START)), lines=at(Catchup(START)))
    assert not driven.reads()
    assert driven.said(RecordEvents) == []
    driven.pass_time(61)
    assert driven.said(RecordEvents) == [RecordEvents(dict.fromkeys((ITEMS, LINES), Demoted(1)))]
    driven.move(items=at(FinishedCopy(SNAPSHOT, 2)), lines=at(FinishedCopy(SNAPSHOT, 2)))
    assert driven.reads()
