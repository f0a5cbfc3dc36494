"""What Retry, Clear and Mark do, cell by cell, by the REST interface and on real processes, while the shop trades.

After each test all tables are Ready and all tasks successful once more, and source and replica are equal: the fixture
sees to that.
"""

import time

import pytest

from airflow_provider_pgetl.demo.shop import TABLES
from airflow_provider_pgetl.engine.model.phases import Errored
from airflow_provider_pgetl.engine.model.tables import TableName
from tests.processes.replica import DAG, Replica, command_of, has_secret, task_of

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(1800)]

CUSTOMERS, PRODUCTS, INVENTORY, ORDERS, ORDER_LINES, PAYMENTS = TABLES


def _raised(replica: Replica, before: dict[TableName, int]) -> set[TableName]:
    """The tables that were reset since."""
    return {table for table, generation in replica.generations().items() if generation > before[table]}


def test_all_tables_become_ready_and_equal_under_load(replica: Replica) -> None:
    assert len(replica.first_pass) == 2 + 5 * len(TABLES)
    # On a busy machine a task may need the retry that Airflow itself gives it; nobody else lends a hand.
    assert max(task.try_number for task in replica.first_pass.values()) <= 2
    assert len(replica.processes("streaming_process")) == 1


def test_clearing_data_sync_copies_the_table_again(replica: Replica) -> None:
    before = replica.generations()
    cleared = replica.clear(task_of(ORDERS, "data_sync"))
    assert set(cleared) == {task_of(ORDERS, step) for step in ("data_sync", "finished_copy", "sync_done", "ready")}
    replica.wait(lambda: replica.generations()[ORDERS] > before[ORDERS], "the table is reset")
    replica.wait(lambda: bool(replica.drivers()), "Spark runs")
    _assert_no_command_line_holds_a_password(replica)
    assert replica.destination.execute("select count(*) > 1000 from orders") == [(True,)], "readers keep the old data"
    replica.wait_until_settled()
    assert _raised(replica, before) == {ORDERS}
    assert replica.generations()[ORDERS] == before[ORDERS] + 1


def _assert_no_command_line_holds_a_password(replica: Replica) -> None:
    seen = [command_of(process) for process in replica.airflow.members()]
    assert any("copy_table.py" in line for line in seen)
    assert any("streaming_process" in line for line in seen)
    assert not any(map(has_secret, seen))


def test_clearing_apply_with_a_large_transaction_in_flight_replaces_the_worker(replica: Replica) -> None:
    before, epoch = replica.generations(), replica.status().epoch
    replica.source.execute("update order_lines set quantity = quantity + 1")
    replica.clear("apply")
    replica.wait(lambda: replica.status().epoch > epoch, "another worker has taken over")
    replica.wait_until_settled()
    replica.wait(lambda: len(replica.processes("streaming_process")) == 1, "the old worker is gone")
    assert _raised(replica, before) == set()


def test_apply_marked_failed_stops_and_goes_on_when_cleared(replica: Replica) -> None:
    before = replica.generations()
    replica.mark("apply", "failed")
    replica.wait(lambda: replica.status().lease is None, "the worker has stopped")
    replica.wait(lambda: not replica.processes("streaming_process"), "its process is gone")
    replica.clear("apply")
    replica.wait_until_settled()
    assert _raised(replica, before) == set()


@pytest.mark.slow
def test_clearing_init_copies_the_table_again_and_forgets_its_schemas(replica: Replica) -> None:
    before, schemas = replica.generations(), _schemas(replica, INVENTORY)
    assert schemas
    replica.clear(task_of(INVENTORY, "init"))
    replica.wait(lambda: replica.generations()[INVENTORY] > before[INVENTORY], "the table is reset")
    replica.wait_until_settled()
    assert _raised(replica, before) == {INVENTORY}
    assert not schemas & _schemas(replica, INVENTORY)


def _schemas(replica: Replica, table: TableName) -> set[str]:
    """The stored versions, by the position from which each is valid."""
    statement = "select valid_from::text from pgetl.table_schemas where table_name = %s"
    return {position for (position,) in replica.source.execute(statement, [table.name])}


@pytest.mark.slow
@pytest.mark.parametrize("step", ["finished_copy", "sync_done", "ready"])
def test_clearing_a_later_task_of_a_ready_table_moves_nothing(replica: Replica, step: str) -> None:
    before, task_id = replica.generations(), task_of(PRODUCTS, step)
    again = replica.tasks()[task_id].try_number + 1
    replica.clear(task_id)
    replica.wait(lambda: replica.tasks()[task_id].try_number == again, "it runs again")
    replica.wait_until_settled()
    assert _raised(replica, before) == set()
    if step == "sync_done":
        assert "clear its `data_sync`" in replica.log(task_id)


@pytest.mark.slow
def test_clearing_sync_done_before_it_starts_the_catch_up_again(replica: Replica) -> None:
    before = replica.generations()
    _copy_with_nobody_to_stream(replica)
    assert "`apply` is not running" in replica.log(task_of(CUSTOMERS, "sync_done"))
    copied = replica.destination.execute("select oid from pg_class where oid = 'customers'::regclass")
    replica.clear("apply")
    replica.clear(task_of(CUSTOMERS, "sync_done"))
    replica.wait_until_settled()
    assert _raised(replica, before) == {CUSTOMERS}
    assert replica.destination.execute("select oid from pg_class where oid = 'customers'::regclass") == copied


@pytest.mark.slow
def test_a_table_that_waits_for_a_stream_that_has_ended_fails_and_says_what_to_clear(replica: Replica) -> None:
    _copy_with_nobody_to_stream(replica)
    waiting = task_of(CUSTOMERS, "sync_done")
    replica.wait_for(waiting, "failed", timeout=150)
    assert "`apply` of this run has failed. Clear `apply`, and then this task" in replica.log(waiting)
    replica.wait_for(task_of(CUSTOMERS, "ready"), "upstream_failed")
    replica.clear("apply")
    replica.clear(waiting)


def _copy_with_nobody_to_stream(replica: Replica) -> None:
    """`apply` ends while a table is copied, which then waits for its catch-up."""
    replica.clear(task_of(CUSTOMERS, "data_sync"))
    replica.wait(lambda: replica.phase(CUSTOMERS) == "DataSync", "it is being copied")
    replica.mark("apply", "failed")
    replica.wait_for(task_of(CUSTOMERS, "sync_done"), "deferred")
    assert replica.phase(CUSTOMERS) == "FinishedCopy"


@pytest.mark.slow
@pytest.mark.parametrize("step", ["init", "data_sync"])
def test_a_clear_where_apply_has_ended_resets_nothing_until_apply_is_cleared_as_well(
    replica: Replica, step: str
) -> None:
    before, task_id = replica.generations(), task_of(INVENTORY, step)
    replica.mark("apply", "failed")
    replica.wait(lambda: replica.status().lease is None, "the worker has stopped")
    replica.wait(lambda: replica.rest.runs(DAG)[replica.run] == "failed", "the run has ended")
    replica.clear(task_id)
    replica.wait_for(task_id, "failed", timeout=150)
    assert "Nothing was done to public.inventory" in replica.log(task_id)
    assert "Clear `apply` of this run as well" in replica.log(task_id)
    assert _raised(replica, before) == set()

    replica.wait_for(task_of(INVENTORY, "ready"), "upstream_failed")
    replica.clear(task_id)
    replica.wait_for(task_id, "deferred")
    replica.clear("apply")
    replica.wait_until_settled()
    assert _raised(replica, before) == {INVENTORY}


@pytest.mark.slow
def test_clearing_ready_of_an_errored_table_names_data_sync_which_copies_it_again(replica: Replica) -> None:
    before = replica.generations()
    replica.destination.execute("alter table payments add constraint poison check (amount >= 0)")
    replica.source.execute("insert into payments (order_id, amount, method) select max(id), -1, 'poison' from orders")
    replica.wait(lambda: isinstance(replica.state(PAYMENTS).phase, Errored), "the table is Errored")
    others = [table for table in TABLES if table != PAYMENTS]
    assert {replica.phase(table) for table in others} == {"Ready"}
    replica.wait(lambda: "TOLD of public.payments" in replica.log("apply"), "the callback is called")
    replica.wait_for("apply", "deferred")
    (line,) = (line for line in replica.log("apply").splitlines() if "public.payments is Errored" in line)
    assert "error" in line
    assert "poison" in line
    assert "clear the table's `data_sync`" in line
    gauge = f"airflow.pgetl.tables_errored,pipeline={DAG}"
    assert replica.metrics.gauges[gauge] == 1

    replica.clear(task_of(PAYMENTS, "ready"))
    replica.wait_for(task_of(PAYMENTS, "ready"), "failed")
    assert "Clear its `data_sync`" in replica.log(task_of(PAYMENTS, "ready"))
    assert replica.phase(PAYMENTS) == "Init"

    replica.destination.execute("alter table payments drop constraint poison")
    replica.clear(task_of(PAYMENTS, "data_sync"))
    replica.wait_until_settled()
    assert _raised(replica, before) == {PAYMENTS}
    replica.wait(lambda: replica.metrics.gauges[gauge] == 0, "no table is Errored any more")


@pytest.mark.slow
def test_clearing_prepare_leaves_ready_tables_ready(replica: Replica) -> None:
    before = replica.generations()
    cleared = replica.clear("prepare")
    assert len(cleared) == len(replica.tasks()), "Airflow takes everything along"
    replica.wait(lambda: replica.tasks()["prepare"].state == "success", "prepare has run")
    replica.wait_until_settled()
    assert _raised(replica, before) == set()
    assert {task.state for task_id, task in replica.tasks().items() if "." in task_id} == {"skipped"}
    cleared = replica.clear(task_of(PRODUCTS, "data_sync"))
    assert len(cleared) == 4
    replica.wait(lambda: replica.generations()[PRODUCTS] > before[PRODUCTS], "what was passed over can be cleared")
    replica.wait_until_settled()
    assert _raised(replica, before) == {PRODUCTS}


@pytest.mark.slow
@pytest.mark.parametrize("step", ["data_sync", "ready"])
def test_marking_a_table_s_task_moves_nothing(replica: Replica, step: str) -> None:
    before, task_id = replica.generations(), task_of(ORDERS, step)
    replica.mark(task_id, "failed")
    replica.mark(task_id, "success")
    for each in ("finished_copy", "sync_done", "ready"):
        if replica.tasks()[task_of(ORDERS, each)].state != "success":
            replica.mark(task_of(ORDERS, each), "success")
    time.sleep(5)
    assert _raised(replica, before) == set()


@pytest.mark.slow
def test_apply_cleared_twice_in_a_row_ends_with_one_worker(replica: Replica) -> None:
    before = replica.generations()
    replica.clear("apply")
    time.sleep(3)
    replica.clear("apply")
    replica.wait_until_settled()
    replica.wait(lambda: len(replica.processes("streaming_process")) == 1, "one worker is left")
    assert _raised(replica, before) == set()
