"""What both kinds of stream share: gathering, writing, failing, acknowledging."""

from __future__ import annotations

from airflow_provider_pgetl.engine.model.phases import Errored, Failed, Init, Ready
from airflow_provider_pgetl.engine.model.positions import (
    Boundary,
    CommitLsn,
    Counted,
    HighWater,
    RowCounts,
    Seen,
    Transaction,
)
from airflow_provider_pgetl.engine.state.decisions import TableFailure
from airflow_provider_pgetl.engine.stream.core import Beginning, Pace
from airflow_provider_pgetl.engine.stream.messages import (
    Acknowledge,
    Finish,
    Planned,
    RecordCeiling,
    RecordEvents,
    Verify,
    Write,
)
from airflow_provider_pgetl.engine.stream.roles import ApplyCore
from tests.engine.stream.driven import GROUP, ITEMS, ORDERS, Driven, at

START = Boundary(100)
POISON = TableFailure("a value does not fit")


def _ready(pace: Pace = Pace()) -> Driven:
    """Two Ready tables at the slot's start."""
    states = {ORDERS: at(Ready()), ITEMS: at(Ready())}
    return Driven(ApplyCore(Beginning(START, states, dict.fromkeys(states, START)), START, pace))


# -- writing ----------------------------------------------------------------------------------------------------------


def test_a_write_moves_exactly_the_tables_that_were_changed() -> None:
    driven = _ready()
    driven.receive(110, 120, ORDERS)
    assert driven.said(Write) == [Write(Boundary(120), {ORDERS: Planned(1, START, Boundary(120))})]


def test_nothing_is_written_amid_a_transaction() -> None:
    driven = _ready()
    driven.receive(110, 120, ORDERS)
    driven.core.begin(CommitLsn(120))
    assert driven.said(Write) == []


def test_one_write_is_under_way_while_the_next_is_gathered() -> None:
    driven = _ready()
    driven.receive(110, 120, ORDERS)
    assert len(driven.said(Write)) == 1
    driven.receive(120, 130, ORDERS, ITEMS)
    assert driven.said(Write) == []
    driven.core.written()
    moves = {ITEMS: Planned(1, START, Boundary(130)), ORDERS: Planned(1, Boundary(120), Boundary(130))}
    assert driven.said(Write) == [Write(Boundary(130), moves)]


def test_commits_keep_their_interval_unless_somebody_is_in_a_hurry() -> None:
    driven = _ready(Pace(write_interval=5.0))
    driven.receive(110, 120, ORDERS)
    driven.said(Write)
    driven.core.written()
    driven.receive(120, 130, ORDERS)
    assert driven.said(Write) == []
    driven.core.hurry()
    assert len(driven.said(Write)) == 1


def test_a_table_that_was_not_written_lately_does_not_wait_for_the_interval_of_others() -> None:
    driven = _ready(Pace(write_interval=5.0))
    driven.receive(110, 120, ORDERS)
    driven.said(Write)
    driven.core.written()
    driven.receive(120, 130, ITEMS)
    assert len(driven.said(Write)) == 1
    driven.core.written()
    driven.receive(130, 140, ITEMS)
    driven.pass_time(4)
    assert driven.said(Write) == []
    driven.pass_time(1)
    assert len(driven.said(Write)) == 1


# -- acknowledging ----------------------------------------------------------------------------------------------------


def test_nothing_is_acknowledged_beyond_what_the_store_was_told() -> None:
    driven = _ready()
    driven.core.keepalive(Boundary(500))
    assert driven.core.ack == START
    (told,) = driven.said(RecordCeiling)
    assert told.boundary == Boundary(500)
    driven.core.ceiling_recorded(told.boundary)
    assert driven.core.ack == Boundary(500)


def test_marks_that_the_store_could_not_take_are_told_again() -> None:
    """A ceiling without them would let a restored destination pass for a whole one."""
    driven = _ready()
    driven.receive(110, 120, ORDERS)
    driven.said(Write)
    driven.core.written()
    last = Transaction(CommitLsn(110))
    seen = Seen(Boundary(120), Boundary(120), last, last)
    told = RecordCeiling(Boundary(120), {ORDERS: HighWater(GROUP, Boundary(120)), ITEMS: HighWater(GROUP, START)}, seen)
    assert driven.said(RecordCeiling) == [told]
    driven.core.ceiling_failed()
    driven.pass_time(60)
    assert driven.said(RecordCeiling) == [told]


def test_a_first_write_after_a_quiet_time_is_confirmed_as_soon_as_any() -> None:
    pace = Pace(ceiling_interval=1.0, idle_ceiling_interval=100.0)
    driven = _ready(pace)
    for quiet in (200, 300):
        driven.core.keepalive(Boundary(quiet))
        driven.core.ceiling_recorded(Boundary(quiet)) if driven.said(RecordCeiling) else None
        driven.pass_time(1.5)
    driven.receive(310, 320, ORDERS)
    driven.said(Write)
    driven.core.written()
    assert [told.boundary for told in driven.said(RecordCeiling)] == [Boundary(320)]


# -- counting ---------------------------------------------------------------------------------------------------------


def _write(driven: Driven, commit: int, end: int, rows: RowCounts) -> None:
    """Until the writer has it."""
    driven.receive(commit, end, ORDERS, commit_time=commit * 10)
    driven.said(Write)
    driven.core.carries({ORDERS: rows})


def _noted(driven: Driven) -> Counted | None:
    driven.pass_time(60)
    (told,) = driven.said(RecordCeiling)
    driven.core.ceiling_recorded(told.boundary)
    return told.positions[ORDERS].counted


def test_what_is_noted_was_counted_up_to_the_mark() -> None:
    driven = _ready()
    _write(driven, 110, 120, RowCounts(inserts=2))
    driven.core.written()
    _write(driven, 120, 130, RowCounts(inserts=1, deletes=1))
    assert _noted(driven) == Counted(START, Boundary(120), RowCounts(inserts=2), 1100), "the second is under way"
    driven.core.written()
    assert _noted(driven) == Counted(START, Boundary(130), RowCounts(inserts=3, deletes=1), 1200)


def test_a_write_that_is_tried_again_or_whose_answer_was_lost_is_counted_once() -> None:
    driven = _ready()
    _write(driven, 110, 120, RowCounts(updates=5))
    driven.core.write_failed()
    driven.pass_time(60)
    assert [write.again for write in driven.said(Write)] == [True]
    driven.core.write_failed(positions={ORDERS: Boundary(120)})
    assert _noted(driven) == Counted(START, Boundary(120), RowCounts(updates=5), 1100)


def test_it_goes_on_with_what_was_counted_up_to_the_position_and_else_begins_anew() -> None:
    before = Counted(Boundary(50), START, RowCounts(truncates=1), 7)
    states = {ORDERS: at(Ready())}
    for there, counted in ((START, before), (Boundary(105), Counted.beginning(Boundary(105)))):
        core = ApplyCore(Beginning(START, states, {ORDERS: there}), START, counted={ORDERS: before})
        driven = Driven(core)
        _write(driven, 110, 120, RowCounts(updates=5))
        core.written()
        assert _noted(driven) == counted.extended(Boundary(120), RowCounts(updates=5), 1100)


def test_a_new_copy_is_counted_anew() -> None:
    driven = _ready()
    _write(driven, 110, 120, RowCounts(inserts=2))
    driven.core.written()
    assert _noted(driven) is not None
    driven.core.recorded({ORDERS: at(Ready(), generation=2)})
    _write(driven, 130, 140, RowCounts(inserts=1))
    driven.core.written()
    noted = _noted(driven)
    assert noted is not None
    assert (noted.upto, noted.rows) == (Boundary(140), RowCounts(inserts=1))


# -- failing ----------------------------------------------------------------------------------------------------------


def _write_of_both() -> Driven:
    driven = _ready()
    driven.receive(110, 120, ORDERS, ITEMS)
    driven.said(Write)
    return driven


def test_trouble_that_passes_is_tried_again_as_it_was() -> None:
    driven = _write_of_both()
    driven.core.write_failed()
    assert driven.said(Write) == []
    driven.pass_time(60)
    (again,) = driven.said(Write)
    assert again.again
    assert set(again.moves) == {ORDERS, ITEMS}


def test_a_lost_answer_is_found_in_the_positions() -> None:
    driven = _write_of_both()
    driven.core.write_failed(positions={ORDERS: Boundary(120), ITEMS: Boundary(120)})
    assert driven.core.progress.durable == Boundary(120)


def test_a_table_leaves_a_write_only_when_its_error_is_read_back() -> None:
    driven = _write_of_both()
    driven.core.write_failed(blame={ORDERS: POISON})
    assert driven.said(RecordEvents) == [RecordEvents({ORDERS: Failed(1, POISON.reason)})]
    driven.pass_time(60)
    assert driven.said(Write) == []
    driven.move(orders=at(Errored(POISON.reason)))
    assert [set(write.moves) for write in driven.said(Write)] == [{ITEMS}]


def test_news_of_other_tables_says_nothing_about_an_error_on_its_way() -> None:
    """What is said again at every word of the store would drown it."""
    driven = _write_of_both()
    driven.core.write_failed(blame={ORDERS: POISON})
    driven.said(RecordEvents)
    for _ in range(5):
        driven.core.recorded(dict(driven.core.states))
        assert driven.said(RecordEvents) == []
    driven.pass_time(60)
    assert len(driven.said(RecordEvents)) == 1


def test_a_table_that_was_quarantined_meanwhile_is_not_blamed_again() -> None:
    driven = _write_of_both()
    driven.move(orders=at(Errored("somebody else said so")))
    driven.core.write_failed(blame={ORDERS: POISON})
    driven.pass_time(60)
    assert driven.said(RecordEvents) == []
    assert [set(write.moves) for write in driven.said(Write)] == [{ITEMS}]


def test_who_is_refused_looks_up_who_owns_what_before_trying_again() -> None:
    driven = _write_of_both()
    driven.core.write_failed(fenced=True)
    assert len(driven.said(Verify)) == 1
    driven.pass_time(60)
    assert driven.said(Write) == []
    driven.core.recorded(dict(driven.core.states))
    assert len(driven.said(Write)) == 1


def test_who_is_refused_again_and_again_gives_up() -> None:
    driven = _write_of_both()
    for _ in range(driven.core.pace.fenced_most):
        driven.core.write_failed(fenced=True)
        driven.core.recorded(dict(driven.core.states))
    assert len(driven.said(Finish)) == 1
    assert not driven.reads()


# -- generations ------------------------------------------------------------------------------------------------------


def test_what_was_gathered_of_an_earlier_generation_is_left_out() -> None:
    driven = _ready()
    driven.receive(110, 120, ORDERS, ITEMS)
    driven.raise_generation(ORDERS, Init(), None)
    assert [set(write.moves) for write in driven.said(Write)] == [{ITEMS}]


def test_a_batch_of_which_nothing_is_left_is_let_go_of() -> None:
    driven = _ready()
    driven.receive(110, 120, ORDERS)
    driven.raise_generation(ORDERS, Init(), None)
    assert driven.said(Write) == [Write(Boundary(120), {})]


def test_a_stream_that_begins_holds_nothing_of_earlier_generations() -> None:
    assert _ready().said(Acknowledge) == [Acknowledge({ORDERS: 1, ITEMS: 1})]


def test_a_new_generation_is_acknowledged_when_no_write_holds_the_old_one() -> None:
    driven = _write_of_both()
    driven.said(Acknowledge)
    driven.raise_generation(ORDERS, Init(), None)
    assert driven.said(Acknowledge) == []
    driven.core.written()
    assert driven.said(Acknowledge) == [Acknowledge({ORDERS: 2})]


def test_what_was_written_of_an_earlier_generation_is_no_position_of_the_present_one() -> None:
    driven = _write_of_both()
    driven.raise_generation(ORDERS, Init(), None)
    driven.core.written()
    assert driven.core.positions == {ITEMS: Boundary(120)}


def test_a_destination_that_stands_before_where_it_was_is_looked_at_anew() -> None:
    """By a new connection, which holds every table against its mark; nothing is confirmed until then."""
    driven = _ready()
    driven.receive(110, 120, ORDERS)
    driven.said(Write)
    driven.core.written()
    driven.receive(130, 140, ORDERS)
    driven.said(Write)
    driven.core.write_failed(positions={ORDERS: Boundary(119)}, fenced=True)
    assert driven.core.set_back == (ORDERS,)
    assert driven.core.finished is not None
    assert driven.said(Write) == []


# -- transactions that are sent for their messages alone --------------------------------------------------------------


def _connected(seen: tuple[Seen, ...] = ()) -> Driven:
    states = {ORDERS: at(Ready())}
    beginning = Beginning(START, states, {ORDERS: START}, seen)
    return Driven(ApplyCore(beginning, START, Pace()))


def test_a_transaction_of_messages_alone_is_not_noted_as_seen() -> None:
    """It is sent only while messages are asked for."""
    core = _connected().core
    core.begin(CommitLsn(110), 1, may_be_empty=True)
    core.changes_come()
    core.commit(Boundary(120))
    core.begin(CommitLsn(130), 2, may_be_empty=True)
    core.commit(Boundary(140))
    assert core.progress.durable == Boundary(140)
    assert core.progress.seen == Seen(Boundary(140), Boundary(120), Transaction(CommitLsn(110), 1, 0))


def test_a_source_that_sends_such_transactions_or_none_of_them_is_the_same() -> None:
    seen = (Seen(Boundary(140), Boundary(120), Transaction(CommitLsn(110), 1, 0)),)
    for with_messages in (True, False):
        core = _connected(seen).core
        core.begin(CommitLsn(110), 1, may_be_empty=with_messages)
        core.changes_come()
        core.commit(Boundary(120))
        if with_messages:
            core.begin(CommitLsn(130), 2, may_be_empty=True)
            core.commit(Boundary(140))
        core.keepalive(Boundary(150))
        assert core.another_history is None
        assert core.recognition.complete
    core = _connected(seen).core
    core.begin(CommitLsn(105), 3, may_be_empty=True)
    core.changes_come()
    core.commit(Boundary(140))
    assert core.another_history is not None, "one with changes was not there before"
