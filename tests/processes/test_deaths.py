"""Processes die, in the middle of what they do; Airflow retries what it retries, and nobody lifts a hand otherwise.

After each test all tables are Ready, all tasks successful and source and replica equal: the fixture sees to that.
"""

import contextlib
import time

import psutil
import pytest

from airflow_provider_pgetl.demo.shop import TABLES
from airflow_provider_pgetl.testing.servers.postgres_servers import Server
from tests.processes.gaps import Gaps
from tests.processes.replica import DAG, Replica, task_of

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1800)]

ORDER_LINES = TABLES[4]
COPY = task_of(ORDER_LINES, "data_sync")


def _copying(replica: Replica) -> psutil.Process:
    """The driver of a copy of the largest table, which has a live attempt."""
    replica.clear(COPY)
    replica.wait(lambda: bool(replica.drivers()) and replica.phase(ORDER_LINES) == "DataSync", "it is being copied")
    return replica.drivers()[0]


def _kill(*processes: psutil.Process) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def test_a_spark_driver_killed_while_it_copies(replica: Replica) -> None:
    attempt = replica.state(ORDER_LINES).attempt
    driver = _copying(replica)
    _kill(*driver.children(recursive=True), driver)
    replica.wait(lambda: replica.tasks()[COPY].state == "success", "the copy is made again by a retry", 240)
    assert replica.state(ORDER_LINES).attempt > attempt + 1


def test_a_worker_killed_while_it_copies_takes_its_driver_along(replica: Replica) -> None:
    driver = _copying(replica)
    task = driver.parent()
    supervisor = task.parent()
    _kill(supervisor, task)
    replica.wait(lambda: not driver.is_running() or driver.status() == psutil.STATUS_ZOMBIE, "the driver ends")
    replica.wait_until_settled(400)


def test_a_scheduler_killed_and_started_again_in_the_middle_of_a_copy(replica: Replica) -> None:
    _copying(replica)
    replica.airflow.kill_component("scheduler")
    time.sleep(3)
    replica.airflow.start_component("scheduler")
    replica.wait_until_settled(400)


@pytest.mark.parametrize("way", ["stopped", "killed"])
def test_a_triggerer_ends_and_a_second_one_takes_over(replica: Replica, way: str) -> None:
    epoch = replica.status().epoch
    replica.airflow.start_component("triggerer-2")
    time.sleep(15)
    try:
        with Gaps(replica.source, DAG, f"of a triggerer that is {way}"):
            end = replica.airflow.stop_component if way == "stopped" else replica.airflow.kill_component
            end("triggerer")
            replica.wait(lambda: replica.status().epoch > epoch, "the stream goes on elsewhere", 120)
            replica.wait(lambda: len(replica.processes("streaming_process")) == 1, "the old worker is gone")
    finally:
        replica.airflow.start_component("triggerer")
        replica.airflow.stop_component("triggerer-2")
    replica.airflow.wait_until_healthy()


def test_a_triggerer_that_stands_still_and_a_second_one_that_takes_over(replica: Replica) -> None:
    """Its streaming worker runs on until it misses the beats; the second one's waits for the lease."""
    epoch, tries = replica.status().epoch, replica.tasks()["apply"].try_number
    replica.airflow.start_component("triggerer-2")
    time.sleep(15)
    try:
        with Gaps(replica.source, DAG, "of a triggerer that stands still"):
            replica.airflow.freeze_component("triggerer")
            replica.wait(lambda: replica.status().epoch > epoch, "the stream goes on elsewhere", 120)
            began = time.monotonic()
            replica.wait(lambda: replica.status().lease is not None, "it streams")
        time.sleep(max(0.0, 45 - (time.monotonic() - began)))
        assert replica.tasks()["apply"].state == "deferred"
        replica.airflow.thaw_component("triggerer")
        replica.airflow.wait_until_healthy()
        replica.wait(lambda: len(replica.processes("streaming_process")) == 1, "the first one's worker is gone", 120)
    finally:
        replica.airflow.thaw_component("triggerer")
        replica.airflow.stop_component("triggerer-2")
    replica.wait_until_settled()
    assert replica.tasks()["apply"].try_number == tries


def test_a_streaming_worker_killed_is_started_again_by_its_trigger(replica: Replica) -> None:
    epoch, tries = replica.status().epoch, replica.tasks()["apply"].try_number
    _kill(*replica.processes("streaming_process"))
    replica.wait(lambda: replica.status().epoch > epoch, "another one has taken over")
    assert replica.tasks()["apply"].try_number == tries


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_source_that_restarts(replica: Replica, mode: str) -> None:
    server: Server = replica.source.server
    began = time.monotonic()
    server.restart(mode)
    assert time.monotonic() - began < 25, "the stream must not hold up a server that shuts down"
    replica.wait(lambda: (status := replica.status()) is not None and status.lease is not None, "it streams again")


def test_a_source_that_is_away_for_longer_than_a_lease_and_all_retries_spends_no_retry(replica: Replica) -> None:
    """`prepare` is cleared meanwhile, and the tables' tasks with it."""
    server: Server = replica.source.server
    before = {task_id: replica.tasks()[task_id].try_number for task_id in ("prepare", "apply")}
    server.stop("fast")
    try:
        time.sleep(30)
        assert replica.tasks()["apply"].state == "deferred"
        replica.clear("prepare")
        replica.wait(lambda: replica.tasks()["prepare"].state == "deferred", "prepare waits")
        time.sleep(90)
        assert replica.tasks()["prepare"].state in ("deferred", "queued", "running", "scheduled")
    finally:
        server.restart("fast")
    replica.wait_until_settled()
    after = {task_id: replica.tasks()[task_id].try_number for task_id in before}
    assert after == {task_id: tries + 1 for task_id, tries in before.items()}, "the Clear alone"
    assert "The task waits until that has passed" in replica.log("prepare")


def test_a_source_that_restarts_while_a_table_is_copied(replica: Replica) -> None:
    _copying(replica)
    replica.source.server.restart("fast")
    replica.wait_until_settled(400)
