"""A continuous run ends after its time, and the next takes over, without anybody's hand."""

from collections.abc import Iterator

import pytest

from tests.processes.replica import Replica

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(400)]

DAG, RUNS = "rotating", 3


@pytest.fixture
def rotating(replica: Replica) -> Iterator[Replica]:
    yield replica
    replica.rest.pause(DAG)
    for run, state in replica.rest.runs(DAG).items():
        if state == "running":
            replica.rest.mark(DAG, run, "apply", "failed")
    replica.wait(lambda: len(replica.processes("streaming_process")) == 1, "it has stopped", 60)


def test_every_run_is_followed_by_another(rotating: Replica) -> None:
    rotating.rest.pause(DAG, False)
    rotating.wait(lambda: len(rotating.rest.runs(DAG)) >= RUNS, f"{RUNS} runs")
    states = list(rotating.rest.runs(DAG).values())
    assert states.count("success") >= RUNS - 1, states
    rotating.trade.pause()
    try:
        rotating.wait(lambda: _equal(rotating), "the replica is equal", 60)
    finally:
        rotating.trade.resume()


def _equal(replica: Replica) -> bool:
    here = replica.source.execute("select c::text from customers c order by 1")
    return here == replica.examples.execute("select c::text from rotated.customers c order by 1")
