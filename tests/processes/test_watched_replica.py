"""A DAG that is scheduled on changes of a replica runs while the pipeline streams, and only if there are changes."""

import re
import time
from datetime import UTC, datetime

import pytest

from tests.processes.replica import Replica

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.matrix, pytest.mark.timeout(1800)]

DAG = "orders_changed"


def test_it_runs_when_the_table_has_changed_and_rests_when_not(replica: Replica) -> None:
    replica.rest.pause(DAG, False)
    try:
        replica.wait(lambda: "success" in replica.rest.runs(DAG).values(), "a run for the changes")
        replica.trade.pause()
        try:
            replica.wait(lambda: _is_at_rest(replica), "no change, no run")
            before = set(replica.rest.runs(DAG))
            replica.source.execute("update orders set id = id where id = (select min(id) from orders)")
            replica.wait(lambda: len(replica.rest.runs(DAG)) == len(before) + 1, "one run for one change")
        finally:
            replica.trade.resume()
        (run,) = set(replica.rest.runs(DAG)) - before
        replica.wait(lambda: replica.rest.runs(DAG).get(run) == "success", "it succeeds")
        told = replica.rest.log(DAG, run, "tell", 1)
        assert "CHANGED up to ['0/" in told
        assert re.search(r"CHANGED rows \[\{'inserts': \d+, 'updates': [1-9]", told), told
        assert f"CHANGED at ['{datetime.now(UTC).year}-" in told
    finally:
        replica.rest.pause(DAG)


def _is_at_rest(replica: Replica) -> bool:
    runs = replica.rest.runs(DAG)
    time.sleep(10)
    return replica.rest.runs(DAG) == runs and set(runs.values()) <= {"success", "failed"}
