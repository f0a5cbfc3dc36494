"""The stream that carries a group from its snapshot to the hand-over."""

from __future__ import annotations

from airflow_provider_pgetl.engine.model.phases import (
    CameNear,
    Catchup,
    CaughtUp,
    Errored,
    FinishedCopy,
    Init,
    Ready,
    SyncDone,
    SyncWait,
)
from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn, HighWater
from airflow_provider_pgetl.engine.stream.core import Beginning, Pace
from airflow_provider_pgetl.engine.stream.messages import (
    AskPosition,
    Finish,
    Planned,
    RecordCeiling,
    RecordEvents,
    Write,
)
from airflow_provider_pgetl.engine.stream.roles import CatchupCore
from tests.engine.stream.driven import GROUP, ITEMS, LINES, ORDERS, SNAPSHOT, Driven, at

PACE = Pace(near_bytes=50, near_doubles_every=5.0)
FAR = Boundary(1000)


def _catchup(start: Boundary = SNAPSHOT, **positions: Boundary) -> Driven:
    """Items and lines are the group's; orders are followed already."""
    states = {ORDERS: at(Ready(), attempt=3), ITEMS: at(FinishedCopy(SNAPSHOT)), LINES: at(FinishedCopy(SNAPSHOT))}
    known = {ITEMS: positions.get("items", SNAPSHOT), LINES: positions.get("lines", SNAPSHOT)}
    return Driven(CatchupCore(GROUP, Beginning(start, states, known), PACE))


def _near(driven: Driven) -> Driven:
    assert isinstance(driven.core, CatchupCore)
    driven.core.apply_stands_at(driven.core.progress.position)
    return driven


def _targeted(driven: Driven, target: int) -> Driven:
    phase = Catchup(Boundary(target))
    driven.move(items=at(phase), lines=at(phase))
    return driven


def test_it_asks_when_it_is_near_and_not_before() -> None:
    driven = _catchup()
    assert isinstance(driven.core, CatchupCore)
    assert driven.said(RecordEvents) == []
    driven.core.apply_stands_at(Boundary(SNAPSHOT.lsn + 51))
    assert driven.said(RecordEvents) == []
    assert driven.said(AskPosition), "the server may be idle: then it is asked where it is"
    driven.core.apply_stands_at(Boundary(SNAPSHOT.lsn + 50))
    asked = CameNear(1, SNAPSHOT)
    assert driven.said(RecordEvents) == [RecordEvents({ITEMS: asked, LINES: asked})]


def test_it_does_not_ask_before_what_makes_every_table_whole() -> None:
    """One was truncated while it was copied: the end of that is in its FinishedCopy."""
    driven = _near(_catchup())
    driven.move(items=at(FinishedCopy(Boundary(140))))
    assert driven.said(RecordEvents) == []
    driven.receive(110, 139, ITEMS)
    assert _near(driven).said(RecordEvents) == []
    assert driven.said(AskPosition)
    driven.receive(139, 140, ITEMS)
    driven.core.written()
    driven.said(Write)
    driven.core.written()
    asked = CameNear(1, Boundary(140))
    assert _near(driven).said(RecordEvents) == [RecordEvents({ITEMS: asked, LINES: asked})]


def test_the_longer_it_takes_the_more_is_near_enough() -> None:
    driven = _catchup()
    assert isinstance(driven.core, CatchupCore)
    driven.core.apply_stands_at(Boundary(SNAPSHOT.lsn + 200))
    driven.said(RecordEvents)
    driven.pass_time(10.0)
    assert len(driven.said(RecordEvents)) == 1


def test_it_arrives_at_the_first_boundary_at_or_behind_the_target() -> None:
    driven = _targeted(_catchup(), 150)
    driven.receive(110, 140, ITEMS)
    assert driven.reads()
    driven.receive(145, 160, ITEMS)
    assert not driven.reads()


def test_a_transaction_that_is_open_is_read_to_its_end() -> None:
    driven = _catchup()
    driven.receive(110, 160)
    driven.core.begin(CommitLsn(160))
    _targeted(driven, 150)
    assert driven.reads()
    driven.core.commit(Boundary(170))
    assert not driven.reads()


def test_first_what_was_gathered_then_the_word() -> None:
    """A table that did not change stays where it is: its position is part of the word."""
    driven = _targeted(_catchup(), 150)
    driven.receive(110, 150, ITEMS)
    assert driven.said(Write) == [Write(Boundary(150), {ITEMS: Planned(1, SNAPSHOT, Boundary(150))})]
    assert driven.said(RecordEvents) == []
    driven.core.written()
    assert driven.said(Write) == []
    changed, unchanged = (CaughtUp(1, Boundary(150), position) for position in (Boundary(150), SNAPSHOT))
    assert driven.said(RecordEvents) == [RecordEvents({ITEMS: changed, LINES: unchanged})]


def test_only_the_store_s_word_ends_it() -> None:
    driven = _targeted(_catchup(), 100)
    assert len(driven.said(RecordEvents)) == 1
    assert driven.said(Finish) == []
    driven.pass_time(60)
    assert len(driven.said(RecordEvents)) == 1, "the word is said again until it is read back"
    driven.move(items=at(SyncDone(SNAPSHOT, SNAPSHOT)), lines=at(SyncDone(SNAPSHOT, SNAPSHOT)))
    assert len(driven.said(Finish)) == 1


def test_a_restarted_stream_does_not_arrive_before_its_tables() -> None:
    """It repeats what they have; no SyncDone may be before that."""
    driven = _targeted(_catchup(items=Boundary(300), lines=Boundary(300)), 150)
    driven.core.keepalive(Boundary(200))
    assert driven.reads()
    driven.core.keepalive(Boundary(300))
    assert not driven.reads()
    assert [set(record.events.values()) for record in driven.said(RecordEvents)] == [
        {CaughtUp(1, Boundary(300), Boundary(300))}
    ]


def test_its_words_name_the_hand_over() -> None:
    driven = _near(_catchup())
    driven.move(items=at(FinishedCopy(SNAPSHOT, 4)), lines=at(FinishedCopy(SNAPSHOT, 4)))
    assert [set(record.events.values()) for record in driven.said(RecordEvents)] == [{CameNear(1, SNAPSHOT, 4)}]


# -- the slot ---------------------------------------------------------------------------------------------------------


def _note(driven: Driven) -> None:
    """The store takes the ceiling that is told."""
    driven.pass_time(60)
    for told in driven.said(RecordCeiling):
        driven.core.ceiling_recorded(told.boundary)


def test_a_group_s_slot_is_confirmed_when_the_store_has_noted_where_its_tables_stand() -> None:
    """Else a destination that was restored would pass for a whole one, and the slot would not hold what it lacks."""
    driven = _catchup()
    driven.receive(110, 120, ITEMS)
    driven.said(Write)
    driven.core.written()
    assert driven.core.ack == SNAPSHOT
    (told,) = driven.said(RecordCeiling)
    assert (told.stream, told.positions[ITEMS]) == (f"c{GROUP}", HighWater(GROUP, Boundary(120)))
    driven.core.ceiling_recorded(told.boundary)
    assert driven.core.ack == Boundary(120)


def test_a_table_that_becomes_errored_keeps_the_slot_where_it_was() -> None:
    """A quiet table lies far below what is confirmed: not its position counts, for confirmations never fall."""
    driven = _catchup()
    driven.core.keepalive(Boundary(300))
    _note(driven)
    driven.receive(310, 320, ITEMS, LINES)
    driven.said(Write)
    driven.core.write_failed()
    driven.move(items=at(Errored("died", from_phase="FinishedCopy")))
    assert driven.core.ack == Boundary(300)
    driven.pass_time(60)
    assert [set(write.moves) for write in driven.said(Write)] == [{LINES}]
    driven.core.written()
    assert driven.core.progress.durable == Boundary(320)
    _note(driven)
    assert driven.core.ack == Boundary(300)


def test_one_that_is_errored_from_the_start_keeps_it_there() -> None:
    states = {ITEMS: at(Errored("died", from_phase="Catchup")), LINES: at(FinishedCopy(SNAPSHOT))}
    driven = Driven(
        CatchupCore(GROUP, Beginning(Boundary(250), states, {ITEMS: Boundary(200), LINES: Boundary(250)}), PACE)
    )
    driven.core.keepalive(FAR)
    _note(driven)
    assert driven.core.ack == Boundary(250)


def test_one_that_leaves_for_good_frees_it() -> None:
    driven = _catchup()
    driven.move(items=at(Errored("died", from_phase="FinishedCopy")))
    driven.core.keepalive(FAR)
    _note(driven)
    assert driven.core.ack == SNAPSHOT
    driven.raise_generation(ITEMS, Init(), None)
    assert driven.core.ack == FAR


def test_a_rollback_within_the_group_ends_the_stream_and_its_confirmations() -> None:
    """The table may need changes that have passed: the next stream reads them again."""
    driven = _catchup()
    driven.receive(110, 120, ITEMS)
    driven.said(Write)
    driven.raise_generation(ITEMS, FinishedCopy(SNAPSHOT))
    driven.core.written()
    assert len(driven.said(Finish)) == 1
    assert driven.core.ack == SNAPSHOT


def test_other_groups_are_none_of_its_business() -> None:
    driven = _catchup()
    driven.move(orders=at(SyncWait(FAR), attempt=9))
    driven.core.keepalive(FAR)
    _note(driven)
    assert driven.core.ack == FAR
    assert not driven.core.owns(ORDERS, CommitLsn(5000))
