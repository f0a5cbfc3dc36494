"""What the tasks after a copy do when they are run, retried, and cleared, on a real store; nothing is streamed here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_provider_pgetl import LagSensor, PhaseSensor, Postgres, ReplicationDag
from airflow_provider_pgetl.connections import environment
from airflow_provider_pgetl.engine.model.phases import (
    CameNear,
    CaughtUp,
    CopyFinished,
    CopyStarted,
    Event,
    Failed,
    RetryPolicy,
    RolledBack,
    TakenOver,
    TargetChosen,
    phase_name,
)
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.engine.source.slots import copy_slot
from airflow_provider_pgetl.engine.state.decisions import CEILING
from airflow_provider_pgetl.engine.state.postgres_store import PostgresStore
from airflow_provider_pgetl.failures import PgetlFailure
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from airflow_provider_pgetl.triggers.pgetl import StreamTrigger
from tests.provider.conftest import AskedAirflow
from tests.provider.running import Ran, TaskInstance

ORDERS = TableName("public", "orders")
HERE = Boundary.parse("0/1000")
pytestmark = pytest.mark.parametrize("source_server", [16], indirect=True)


class Table:
    """The table `orders` of a prepared pipeline, moved by hand."""

    def __init__(self, databases: Databases) -> None:
        self.dag = ReplicationDag(
            "shop", source_conn_id="shop_db", tables=["public.orders"], destination=Postgres("replica_db")
        )
        given = {**os.environ, **environment(self.dag.replication.connections)}
        self.pipeline = Pipeline(self.dag.replication.spec, environment=given)
        self.pipeline.prepare()
        self._source = databases.source

    @property
    def phase(self) -> str:
        return phase_name(self.pipeline.state(ORDERS).phase)

    @property
    def generation(self) -> int:
        return self.pipeline.state(ORDERS).generation

    def copy(self) -> None:
        attempt = self.pipeline.store.start_attempt(60.0)
        slot = copy_slot("shop", self.pipeline.store.pipeline().instance, attempt)
        self._source.execute("select 1 from pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        self.tell(CopyStarted(self.generation, attempt), CopyFinished(self.generation, attempt, HERE))
        self.pipeline.store.end_attempt(attempt)

    def hand_over(self) -> None:
        g = self.generation
        self.tell(CameNear(g, HERE), TargetChosen(g, HERE), CaughtUp(g, HERE, HERE), TakenOver(g, HERE))

    def fail(self, kind: str, at: float | None = None) -> None:
        policy = RetryPolicy(kind, at)  # type: ignore[arg-type] # named as in the declaration of the type
        self.tell(Failed(self.generation, "A value does not fit.", "Widen the column.", policy))

    def recover(self) -> None:
        """As the streaming worker does when the time of a retry has come."""
        self.tell(RolledBack(self.generation))

    def tell(self, *events: Event) -> None:
        for event in events:
            assert isinstance(self.pipeline.store.apply({ORDERS: event}), dict)

    def run(self, station: str, call: str = "execute", **arguments: Any) -> BaseException | None:
        """What the task's execution came to: None is success, `TaskDeferred` waiting."""
        task = self.dag.task_dict[f"public__orders.{station}"]
        ran = Ran(task.task_id)
        context = {"ti": TaskInstance("shop", task.task_id), "run_id": "r", "outlet_events": ran.outlet_events}
        try:
            getattr(task, call)(context, **arguments)
        except (Exception, TaskDeferred) as outcome:
            return outcome
        return None


@pytest.fixture
def table(small_shop: Databases) -> Iterator[Table]:
    table = Table(small_shop)
    yield table
    table.pipeline.close()


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


# -- init and data_sync -----------------------------------------------------------------------------------------------


def test_init_cleared_resets_the_table_once(table: Table) -> None:
    table.copy()
    table.hand_over()
    assert table.run("init") is None
    assert (table.phase, table.generation) == ("Ready", 1)
    assert table.run("init") is None
    assert (table.phase, table.generation) == ("Init", 2)


def test_data_sync_passes_a_table_that_is_copied_and_copies_one_that_was_cleared(table: Table) -> None:
    table.copy()
    table.hand_over()
    assert table.run("data_sync") is None
    assert table.generation == 1
    busy = [table.pipeline.store.start_attempt(60.0) for _ in range(2)]
    waiting = table.run("data_sync")
    assert isinstance(waiting, TaskDeferred)
    assert (table.phase, table.generation) == ("Init", 2)
    # Started again while it waits: the Clear has been obeyed already.
    assert isinstance(table.run("data_sync"), TaskDeferred)
    assert table.generation == 2
    assert table.pipeline.store.live_attempts() == set(busy)


def test_data_sync_waits_while_another_copies_its_table(table: Table) -> None:
    attempt = table.pipeline.store.start_attempt(60.0)
    table.tell(CopyStarted(1, attempt))
    assert isinstance(table.run("data_sync"), TaskDeferred)
    assert table.phase == "DataSync"


def test_data_sync_fails_for_what_only_a_person_can_settle_and_goes_back_once_cleared(table: Table) -> None:
    table.fail("manual")
    assert isinstance(table.run("data_sync"), AirflowFailException)
    for _ in range(2):
        table.pipeline.store.start_attempt(60.0)
    assert isinstance(table.run("data_sync"), TaskDeferred)
    assert (table.phase, table.generation) == ("Init", 2)


def test_without_its_spark_connection_data_sync_says_so_and_is_not_retried(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    outcome = table.run("data_sync")
    assert isinstance(outcome, AirflowFailException)
    assert "'spark_default'" in str(outcome)
    assert table.pipeline.store.live_attempts() == set()
    assert table.phase == "Init"


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
    assert "nobody has streamed the pipeline for 3 min 03 s" in str(outcome)
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


# -- for other people's DAGs ------------------------------------------------------------------------------------------


def look_for(**options: Any) -> BaseException | None:
    given = {"task_id": "wait", "pipeline": "shop", "table": "public.orders", "state_conn_id": "shop_db", **options}
    try:
        PhaseSensor(**given).execute({})  # type: ignore[arg-type] # a context without content
    except (Exception, TaskDeferred) as outcome:
        return outcome
    return None


def test_a_phase_sensor_passes_once_the_phase_is_reached_or_passed(table: Table) -> None:
    assert isinstance(look_for(timeout=60), TaskDeferred)
    table.copy()
    assert look_for(phase="DataSync") is None
    assert isinstance(look_for(), TaskDeferred)
    table.hand_over()
    assert look_for() is None


def test_a_phase_sensor_says_what_cannot_come(table: Table) -> None:
    missing = str(look_for(table="public.nothing"))
    assert "no table public.nothing. There are: public.orders. Name one of those" in missing
    assert "'nowhere', which leads to the pipeline's state" in str(look_for(state_conn_id="nowhere"))
    assert "Name the pipeline's id" in str(look_for(pipeline="My.Shop"))
    assert "no phase 'Redy'" in str(look_for(phase="Redy"))
    assert isinstance(look_for(pipeline="never_run"), TaskDeferred)
    table.fail("manual")
    assert "A value does not fit." in str(look_for())


def test_a_phase_sensor_that_fails_softly_is_skipped(table: Table) -> None:
    table.fail("manual")
    assert isinstance(look_for(), AirflowFailException)
    for given in ({"soft_fail": True}, {"never_fail": True}, {"soft_fail": True, "deferrable": False}):
        assert isinstance(look_for(**given), AirflowSkipException)
    assert isinstance(look_for(state_conn_id="nowhere", never_fail=True), AirflowSkipException)


def test_a_phase_sensor_pokes_where_that_is_asked_for(table: Table) -> None:
    assert isinstance(look_for(deferrable=False, timeout=0.1, poke_interval=0.2), AirflowSensorTimeout)
    assert isinstance(look_for(mode="poke", timeout=0.1, poke_interval=0.2, soft_fail=True), AirflowSkipException)
    assert isinstance(look_for(mode="reschedule", deferrable=True), TaskDeferred)
    with pytest.raises(ValueError, match="mode must be one of"):
        PhaseSensor(task_id="wait", pipeline="shop", table="public.orders", state_conn_id="shop_db", mode="other")
    table.copy()
    table.hand_over()
    assert look_for(mode="poke") is None


def test_a_lag_sensor_pokes_too(table: Table) -> None:
    given = {"task_id": "fresh", "pipeline": "shop", "state_conn_id": "shop_db", "max_lag": "10s"}
    with pytest.raises(AirflowSensorTimeout):
        LagSensor(mode="poke", timeout=0.1, poke_interval=0.2, **given).execute({})  # type: ignore[arg-type]
    with pytest.raises(TaskDeferred):
        LagSensor(**given).execute({})  # type: ignore[arg-type]
