"""What `prepare` of a continuous DAG refuses does not make a failed run every few seconds."""

from collections.abc import Iterator

import pytest

from tests.processes.replica import Replica

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.matrix, pytest.mark.timeout(900)]

DAG, READY = "refused", "public__late.ready"


@pytest.fixture
def refused(replica: Replica) -> Iterator[Replica]:
    yield replica
    replica.stop(DAG)
    replica.source.execute("drop table if exists late")


def test_the_next_run_waits_for_some_minutes_or_for_a_clear(refused: Replica) -> None:
    rest = refused.rest
    rest.pause(DAG, False)
    refused.wait(lambda: "failed" in rest.runs(DAG).values(), "prepare refuses")
    refused.wait(lambda: len(rest.runs(DAG)) == 2, "the next run begins")
    run = next(iter(rest.runs(DAG)))
    refused.wait(lambda: rest.tasks(DAG, run)["prepare"].state == "deferred", "it waits")
    assert "Clear this task to have it begin now." in rest.log(DAG, run, "prepare", 1)

    refused.source.execute("create table late (id int primary key)")
    rest.clear(DAG, run, "prepare")
    refused.wait(lambda: rest.tasks(DAG, run)[READY].state == "success", "the table is replicated")
    assert len(rest.runs(DAG)) == 2
