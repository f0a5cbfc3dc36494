"""What the tasks after a copy do when they are run, retried, and cleared, on a real store; nothing is streamed here."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    TaskDeferred,
)

from airflow_provider_pgetl import Postgres, ReplicationDag
from airflow_provider_pgetl.engine.model.phases import (
    CameNear,
    CopyStarted,
)
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.engine.state.decisions import CEILING
from airflow_provider_pgetl.engine.state.postgres_store import PostgresStore
from airflow_provider_pgetl.failures import PgetlFailure
from airflow_provider_pgetl.triggers.pgetl import StreamTrigger
from tests.provider.conftest import AskedAirflow
from tests.provider.table import HERE, ORDERS, Table

pytestmark = pytest.mark.parametrize("source_server", [16], indirect=True)


def test_each_waits_for_its_own_station(table: Table) -> None:
    table.copy()
    assert table.run("finished_copy") is None
    waiting = table.run("sync_done")
    assert isinstance(waiting, TaskDeferred)
    assert waiting.timeout is None
    assert set(waiting.trigger.phases) == {"SyncDone", "Ready", "Errored", "Init"}
    table.hand_over()
    assert table.run("sync_done", "resume", event={"phase": "Ready"}) is None
    assert table.run("ready") is None


def test_finished_copy_cleared_moves_nothing(table: Table) -> None:
    table.copy()
    assert table.run("finished_copy") is None
    assert table.run("finished_copy") is None
    assert (table.phase, table.generation) == ("FinishedCopy", 1)


def test_sync_done_cleared_before_it_starts_the_catch_up_again(table: Table) -> None:
    table.copy()
    assert isinstance(table.run("sync_done"), TaskDeferred)
    table.tell(CameNear(1, HERE))
    assert isinstance(table.run("sync_done"), TaskDeferred)
    assert (table.phase, table.generation) == ("FinishedCopy", 2)


def test_sync_done_cleared_after_it_checks(table: Table) -> None:
    table.copy()
    table.hand_over()
    assert table.run("sync_done") is None
    assert table.run("sync_done") is None
    assert (table.phase, table.generation) == ("Ready", 1)


def test_an_errored_table_fails_with_reason_and_remedy_and_no_vain_retry(table: Table) -> None:
    table.copy()
    table.fail("manual")
    outcome = table.run("ready")
    assert isinstance(outcome, AirflowFailException)
    assert "A value does not fit. Widen the column." in str(outcome)
    assert "clear this task" in str(outcome)


@pytest.mark.parametrize("station", ["finished_copy", "sync_done", "ready"])
@pytest.mark.parametrize("was_handed_over", [False, True], ids=["catching up", "Ready"])
def test_what_is_to_be_cleared_is_what_brings_an_errored_table_on(
    table: Table, station: str, was_handed_over: bool
) -> None:
    """From the finished copy this task does; else it would only name `data_sync`, and `finished_copy` moves nothing."""
    table.copy()
    if was_handed_over:
        table.hand_over()
    table.fail("manual")
    by_itself = station != "finished_copy" and not was_handed_over
    cleared = "this task" if by_itself else "its `data_sync`"
    assert str(table.run(station)) == (
        f"public.orders is Errored: A value does not fit. Widen the column. Then clear {cleared}. "
        "A retry cannot help until that is done."
    )


def test_ready_cleared_rolls_an_errored_table_back(table: Table) -> None:
    table.copy()
    table.fail("manual")
    table.run("ready")
    assert isinstance(table.run("ready"), TaskDeferred)
    assert (table.phase, table.generation) == ("FinishedCopy", 2)


def test_ready_cleared_names_data_sync_where_the_table_must_be_copied_again(table: Table) -> None:
    table.copy()
    table.hand_over()
    table.fail("manual")
    table.run("ready")
    outcome = table.run("ready")
    assert isinstance(outcome, AirflowFailException)
    assert "`data_sync`" in str(outcome)
    assert table.phase == "Init"


def bounded(table: Table) -> Table:
    """In a run that is to catch up."""
    given = {"source_conn_id": "shop_db", "tables": ["public.orders"], "destination": Postgres("replica_db")}
    table.dag = ReplicationDag("shop", until="caught_up", **given)
    return table


def test_ready_of_a_run_that_is_to_catch_up_waits_for_what_was_committed_before(table: Table) -> None:
    table.copy()
    table.hand_over()
    store = bounded(table).pipeline.store
    store.record_completion("shop/r", "prepare")
    waiting = table.run("ready")
    assert isinstance(waiting, TaskDeferred)
    assert (waiting.method_name, waiting.timeout) == ("caught_up", None)
    _, kwargs = waiting.trigger.serialize()
    assert (kwargs["follows"], kwargs["run"]) == ("apply", "shop/r")
    position = kwargs["position"]
    assert Boundary.parse(position) > HERE

    ended = table.run("ready", "caught_up", event={"position": position, "ended": True})
    assert isinstance(ended, PgetlFailure)
    assert "`apply` has ended before public.orders had caught up." in str(ended)
    store.record_completion("shop/r", "apply")
    assert table.run("ready", "caught_up", event={"position": position, "ended": True}) is None
    assert table.run("ready") is None, "the run has caught up"

    store.record_completion("shop/r", "prepare")
    assert isinstance(table.run("ready"), TaskDeferred), "it is prepared again"
    store.record_progress(CEILING, Boundary.parse("FF/0"))
    assert table.run("ready") is None, "it is there"


def test_ready_of_a_table_that_this_run_has_brought_there_waits_no_more(table: Table) -> None:
    bounded(table).pipeline.store.record_completion("shop/r", "prepare")
    table.copy()
    table.hand_over()
    assert table.run("ready") is None


def test_ready_fails_where_the_table_became_errored_while_it_waited(table: Table) -> None:
    table.copy()
    table.hand_over()
    bounded(table).pipeline.store.record_completion("shop/r", "prepare")
    assert isinstance(table.run("ready"), TaskDeferred)
    table.fail("manual")
    outcome = table.run("ready", "caught_up", event={"position": "FF/0", "ended": False})
    assert isinstance(outcome, AirflowFailException)
    assert "A value does not fit." in str(outcome)


def test_a_timed_retry_is_waited_for_and_then_made(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    table.copy()
    due = time.time() + 1000.0
    table.fail("timed", due)
    assert isinstance(table.run("ready"), PgetlFailure)
    waiting = table.run("ready")
    assert isinstance(waiting, TaskDeferred)
    assert waiting.trigger.until == pytest.approx(due, abs=60.0)  # by another clock
    assert "Errored" not in waiting.trigger.phases
    assert table.phase == "Errored"
    monkeypatch.setattr(PostgresStore, "now", lambda _: due)
    assert isinstance(table.run("ready", "resume", event={"phase": None, "due": True}), TaskDeferred)
    assert table.phase == "FinishedCopy"


def test_a_timed_retry_that_the_worker_has_made_is_not_made_again(table: Table) -> None:
    """Both are due at the same moment, and the trigger is the later one."""
    table.copy()
    table.fail("timed", time.time() - 1.0)
    table.run("ready")
    table.recover()
    assert isinstance(table.run("ready", "resume", event={"phase": None, "due": True}), TaskDeferred)
    assert (table.phase, table.generation) == ("FinishedCopy", 2)
    table.hand_over()
    assert table.run("ready", "resume", event={"phase": None, "due": True}) is None
    assert (table.phase, table.generation) == ("Ready", 2)


def test_a_timed_retry_that_comes_while_the_table_is_copied_anew_lets_the_copy_go_on(table: Table) -> None:
    table.fail("timed", time.time() - 1.0)
    table.run("ready")
    table.recover()
    table.tell(CopyStarted(2, table.pipeline.store.start_attempt(60.0)))
    assert isinstance(table.run("ready", "resume", event={"phase": None, "due": True}), TaskDeferred)
    assert (table.phase, table.generation) == ("DataSync", 2)


@pytest.mark.parametrize("station", ["ready", "data_sync"])
def test_a_retry_that_the_worker_makes_while_the_task_looks_is_made_once(
    table: Table, station: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.copy()
    table.fail("timed", time.time() - 1.0)
    in_between(monkeypatch, table.recover)
    assert not isinstance(table.run(station, "resume", event={"due": True}), AirflowFailException | PgetlFailure)
    assert (table.phase, table.generation) == ("FinishedCopy", 2)


def test_sync_done_cleared_while_the_catch_up_ends_leaves_the_table_there(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.copy()
    assert isinstance(table.run("sync_done"), TaskDeferred)
    in_between(monkeypatch, table.hand_over)
    assert table.run("sync_done") is None
    assert (table.phase, table.generation) == ("Ready", 1)


def in_between(monkeypatch: pytest.MonkeyPatch, happen: Callable[[], None]) -> None:
    """Something happens between a task's look at the table and what it does by it."""
    groups = Pipeline._usable_groups

    def looked(pipeline: Pipeline) -> set[int]:
        happen()
        return groups(pipeline)

    monkeypatch.setattr(Pipeline, "_usable_groups", looked)


# -- in a run that cannot finish it -----------------------------------------------------------------------------------


def cleared(table: Table, step: str) -> BaseException | None:
    """The task has completed in the run, and is started again."""
    table.pipeline.store.record_completion("shop/r", f"public__orders.{step}")
    return table.run(step)


@pytest.mark.parametrize("step", ["init", "data_sync"])
def test_a_clear_resets_nothing_that_nobody_would_bring_back(
    table: Table, asked_airflow: AskedAirflow, step: str
) -> None:
    table.copy()
    table.hand_over()
    asked_airflow.states = {"apply": "success"}
    waiting = cleared(table, step)
    assert isinstance(waiting, TaskDeferred)
    assert isinstance(waiting.trigger, StreamTrigger)
    assert waiting.trigger.until == pytest.approx(time.time() + 180, abs=20)
    assert waiting.kwargs is not None
    assert (table.phase, table.generation) == ("Ready", 1)

    outcome = table.run(step, "resume_with_stream", event={"streamed": False}, since=time.time() - 180)
    assert isinstance(outcome, AirflowFailException)
    assert "Nothing was done to public.orders" in str(outcome)
    assert "`apply` of this run has ended. Clear `apply` of this run as well" in str(outcome)
    assert (table.phase, table.generation) == ("Ready", 1)

    asked_airflow.states = {"apply": None}
    for _ in range(2):
        table.pipeline.store.start_attempt(60.0)
    outcome = table.run(step, "resume_with_stream", event={"streamed": True}, **waiting.kwargs)
    assert not isinstance(outcome, AirflowFailException)
    assert (table.phase, table.generation) == ("Init", 2)


def test_a_clear_resets_where_somebody_streams_all_the_same(table: Table, asked_airflow: AskedAirflow) -> None:
    table.copy()
    table.hand_over()
    asked_airflow.states = {"apply": "failed"}
    assert table.pipeline.store.acquire_lease("another run", 60.0)
    in_the_background(table)
    assert cleared(table, "init") is None
    assert (table.phase, table.generation) == ("Init", 2)


def in_the_background(table: Table) -> None:
    """A streaming worker that lets every table go at once."""
    acknowledge = table.pipeline.store.acknowledge
    acknowledge({ORDERS: table.generation + 1})


@pytest.mark.parametrize("step", ["sync_done", "ready", "data_sync"])
def test_a_retry_rolls_nothing_back_that_nobody_would_bring_on(
    table: Table, asked_airflow: AskedAirflow, step: str
) -> None:
    table.copy()
    table.fail("manual")
    assert isinstance(table.run(step), AirflowFailException)
    asked_airflow.states = {"apply": "upstream_failed"}
    assert isinstance(table.run(step), TaskDeferred)
    outcome = table.run(step, "resume_with_stream", event={"streamed": False}, since=time.time() - 180)
    assert isinstance(outcome, AirflowFailException)
    assert "`apply` of this run was not started, as a task before it has failed" in str(outcome)
    assert (table.phase, table.generation) == ("Errored", 1)


@pytest.mark.parametrize(("step", "ended"), [("sync_done", "failed"), ("ready", "missing")])
def test_a_wait_that_is_in_vain_says_what_to_clear(table: Table, step: str, ended: str) -> None:
    table.copy()
    assert isinstance(table.run(step), TaskDeferred)
    outcome = table.run(step, "resume", event={"phase": None, "unstreamed": ended, "seconds": 183.4})
    assert isinstance(outcome, AirflowFailException)
    assert "public.orders is in FinishedCopy" in str(outcome)
    assert "no worker has streamed the pipeline for 3 min 03 s" in str(outcome)
    assert "Clear `apply`, and then this task" in str(outcome)


def test_a_wait_that_was_in_vain_until_just_now_was_not(table: Table) -> None:
    table.copy()
    table.run("ready")
    table.hand_over()
    assert table.run("ready", "resume", event={"phase": None, "unstreamed": "failed", "seconds": 183.4}) is None


def test_a_table_that_waits_for_room_in_vain_says_what_to_clear(table: Table) -> None:
    for _ in range(2):
        table.pipeline.store.start_attempt(60.0)
    waiting = table.run("data_sync")
    assert isinstance(waiting, TaskDeferred)
    assert (waiting.trigger.run_name, waiting.trigger.apply, waiting.trigger.grace) == ("shop/r", "apply", 180.0)
    outcome = table.run("data_sync", "resume", event={"due": False, "unstreamed": "failed", "seconds": 183.4})
    assert isinstance(outcome, AirflowFailException)
    assert "Clear `apply`" in str(outcome)
