"""What ends a group's copy before its tables are published, and what then becomes of store, slot and staging."""

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyTable
from airflow_provider_pgetl.engine.copy.attempt import LocalCopy, Settings
from airflow_provider_pgetl.engine.copy.table_copy import Staging
from airflow_provider_pgetl.engine.destinations.memory import MemoryDestination
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import (
    CopyFinished,
    CopyStarted,
    Errored,
    Event,
    Refused,
    RolledBack,
    TableState,
)
from airflow_provider_pgetl.engine.model.reports import nobody
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing.servers.postgres_servers import Server
from tests.engine.copy.copies import BIG, EMPTY, SMALL, SOURCE, Copies, ids, public
from tests.engine.copy.meddling import Meddling

# -- the attempt ends early -------------------------------------------------------------------------------------------


def test_a_superseded_attempt_publishes_nothing_and_leaves_nothing(three: Copies, memory: MemoryDestination) -> None:
    """The store takes it for dead though it lives, and a second attempt begins and ends: what that published stays."""
    second = []

    def overtake() -> None:
        for attempt in three.store.live_attempts():
            three.store.end_attempt(attempt)
        three.source.execute("insert into small values (3)")
        second.append(three.copy(BIG, SMALL))

    result = three.copy(BIG, SMALL, runner=Meddling(before=overtake))

    assert (result.published, result.failed) == ((), {})
    assert set(result.left_out) == {BIG, SMALL}
    assert ids(memory, SMALL) == [1, 2, 3]
    assert memory.positions(three.id)[SMALL].position == second[0].boundary
    assert three.slots() == {second[0].slot}
    assert three.staged() == []


def test_a_table_rolled_back_meanwhile_is_left_out(three: Copies, memory: MemoryDestination) -> None:
    def roll_back() -> None:
        three.store.apply({BIG: RolledBack(three.store.tables()[BIG].state.generation)})

    result = three.copy(BIG, SMALL, runner=Meddling(before=roll_back))

    assert (result.published, set(result.left_out)) == ((SMALL,), {BIG})
    assert three.phases()[BIG] == "Init"
    assert BIG not in memory.tables()


def test_an_attempt_given_up_for_dead_publishes_nothing(three: Copies, memory: MemoryDestination) -> None:
    def give_up() -> None:
        (attempt,) = three.store.live_attempts()
        three.store.end_attempt(attempt)
        while any(thread.name == f"Copy attempt {attempt}" for thread in threading.enumerate()):
            time.sleep(0.01)

    result = three.copy(BIG, SMALL, runner=Meddling(before=give_up), settings=Settings(attempt_ttl=4.0))

    assert result.published == ()
    assert "given up for dead" in result.left_out[BIG]
    assert memory.tables() == frozenset()
    assert three.staged() == []
    assert three.slots() == set()
    assert set(three.phases().values()) == {"DataSync"}


def test_asked_to_stop_it_stops_and_the_next_attempt_copies_all(three: Copies, memory: MemoryDestination) -> None:
    stop = threading.Event()
    stopped = three.copy(BIG, SMALL, runner=Meddling(after=lambda n: n == 2 and stop.set()), stop=stop)

    assert (stopped.published, stopped.exit_code, three.slots(), three.staged()) == ((), 0, set(), [])
    assert set(three.phases().values()) == {"DataSync"}
    assert set(three.copy(BIG, SMALL).published) == {BIG, SMALL}
    assert ids(memory, BIG) == list(range(1, 5001))


def test_tables_published_before_the_end_keep_the_slot(three: Copies) -> None:
    """The smallest come first here, so that the end finds one published and one not."""
    stop = threading.Event()

    def stop_after_small(ranges: int) -> None:
        if ranges == 1:
            stop.set()

    result = three.copy(BIG, SMALL, runner=Meddling(after=stop_after_small, order=lambda task: task.size), stop=stop)

    assert (result.published, set(result.left_out)) == ((SMALL,), {BIG})
    assert three.phases()[SMALL] == "FinishedCopy"
    assert three.slots() == {result.slot}


def test_a_table_that_is_rolled_back_before_its_copy_is_known_to_be_recorded_keeps_the_slot(
    three: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_each = three.store.apply_each
    lost: list[TableName] = []

    def lose_the_answer(events: Mapping[TableName, Event]) -> Mapping[TableName, TableState | Refused]:
        answer = apply_each(events)
        if isinstance(events.get(SMALL), CopyFinished) and not lost:
            lost.append(SMALL)
            three.store.apply({SMALL: RolledBack(three.store.tables()[SMALL].state.generation, slot_alive=True)})
            raise PgetlError(ErrorKind.STORE, "The answer was lost.")
        return answer

    monkeypatch.setattr(three.store, "apply_each", lose_the_answer)
    result = three.copy(SMALL)

    assert (lost, result.published) == ([SMALL], ())
    assert three.phases()[SMALL] == "FinishedCopy"
    assert len(three.slots()) == 1


def test_nobody_else_s_tables_are_touched_and_that_they_were_copied_meanwhile_is_no_news(three: Copies) -> None:
    three.copy(SMALL)
    before = three.phase(SMALL)
    three.reports.clear()

    result = three.copy(SMALL, public("unregistered_as_it_is_not_there"), register=False)

    assert result.published == ()
    assert set(result.left_out) == {SMALL, public("unregistered_as_it_is_not_there")}
    assert result.left_out[SMALL] == "public.small was copied by another attempt."
    assert three.phase(SMALL) == before
    assert [report for report in three.reports if getattr(report, "table", None) == SMALL] == []


def test_a_later_attempt_keeps_its_table_from_an_earlier_one(three: Copies) -> None:
    three.register(SMALL)
    generation = three.store.tables()[SMALL].state.generation
    three.store.apply({SMALL: CopyStarted(generation, 1000)})

    assert three.copy(SMALL).published == ()
    assert three.slots() == set()


def test_open_transactions_are_named_when_the_slot_has_to_wait_too_long(three: Copies) -> None:
    with three.source.connect(autocommit=False, application_name="month end") as writer:
        writer.execute("insert into small values (99)")
        result = three.copy(BIG, SMALL, settings=Settings(slot_patience=0.5))

    assert result.failure is not None
    assert "month end" in result.failure.message
    assert three.slots() == set()
    phase = three.phase(BIG)
    assert isinstance(phase, Errored)
    assert phase.retry_policy.kind == "timed"


def test_the_snapshot_s_session_is_ended_by_someone(three: Copies) -> None:
    """Ranges that were not begun cannot be read any more: the attempt ends, to be tried again."""
    its = "from pg_stat_activity where datname = current_database() and application_name like '% snapshot'"

    def end_it() -> None:
        three.source.execute(f"select pg_terminate_backend(pid) {its}")
        while three.source.execute(f"select 1 {its}"):
            time.sleep(0.01)

    result = three.copy(BIG, SMALL, runner=Meddling(before=end_it))

    assert result.failure is not None
    assert "snapshot" in result.failure.message
    assert result.published == ()
    assert three.slots() == set()
    assert set(three.phases().values()) == {"Errored"}


def test_a_source_that_goes_away_ends_the_attempt(
    copies: Copies, memory: MemoryDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server.start(16) as server:
        copies.source = server.create_database("gone")
        monkeypatch.setenv(SOURCE, copies.source.uri)
        copies.source.execute("create table t as select generate_series(1, 5000) as id")
        copies.publish()
        result = copies.copy(public("t"), runner=Meddling(before=server.kill))

    assert result.failure is not None
    assert result.failure.kind is ErrorKind.CONNECTION
    assert result.exit_code == 1
    assert isinstance(copies.phase(public("t")), Errored)
    assert memory.tables() == frozenset()


def test_the_snapshot_is_let_go_before_the_last_table_is_published(
    three: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building the keys of a large table takes long, and the source cannot clean up behind a snapshot."""
    held: list[int] = []
    publish = Staging.publish
    query = "select count(*) from pg_stat_activity where application_name like %s and backend_type = 'walsender'"

    def note_and_publish(staging: Staging, target: Target, ranges: int | None) -> None:
        patience = time.monotonic() + 10 * len(held)  # a session that was closed is seen for a moment more
        while (count := three.source.execute(query, [f"pgetl {three.id} % snapshot"])[0][0]) and held:
            if time.monotonic() > patience:
                break
            time.sleep(0.01)
        held.append(count)
        publish(staging, target, ranges)

    monkeypatch.setattr(Staging, "publish", note_and_publish)

    assert len(three.copy(BIG, SMALL).published) == 2
    assert held[-1] == 0


# -- what nobody foresaw ----------------------------------------------------------------------------------------------


def test_a_defect_of_a_destination_ends_the_table_that_it_was_given(
    three: Copies, memory: MemoryDestination, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = MemoryDestination.finish_copy

    def finish_all_but_small(self: MemoryDestination, target: Target, *given: Any) -> None:
        if target.schema.table == SMALL:
            raise KeyError("no such page")
        finish(self, target, *given)

    monkeypatch.setattr(MemoryDestination, "finish_copy", finish_all_but_small)
    result = three.copy(BIG, SMALL, EMPTY)
    assert set(result.published) == {BIG, EMPTY}
    assert result.failure is None
    phase = three.phase(SMALL)
    assert isinstance(phase, Errored)
    assert phase.reason == "The copy of public.small met KeyError: 'no such page'."
    assert phase.retry_policy.kind == "manual"


def test_a_defect_of_the_copy_itself_ends_all_its_tables(three: Copies) -> None:
    """They do not stay in DataSync, to be copied again and again without a word."""

    def fail() -> None:
        raise ZeroDivisionError("never")

    result = three.copy(BIG, SMALL, runner=Meddling(before=fail))
    assert result.failure is not None
    assert result.failure.kind is ErrorKind.INTERNAL
    assert "ZeroDivisionError: never" in result.failure.message
    for table in (BIG, SMALL):
        phase = three.phase(table)
        assert isinstance(phase, Errored)
        assert "ZeroDivisionError: never" in phase.reason
    assert three.slots() == set()
    assert three.store.live_attempts() == frozenset()


def test_a_thread_that_dies_of_a_defect_is_a_copy_that_failed(three: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise ZeroDivisionError("never")

    monkeypatch.setattr(three.store, "start_attempt", fail)
    result = LocalCopy(CopyJob(three.spec, (CopyTable(SMALL, SMALL),)), three.store, nobody).wait(10)
    assert result is not None
    assert result.failure is not None
    assert "ZeroDivisionError: never" in result.failure.message
