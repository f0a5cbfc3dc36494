"""Two DAGs with a group of one name do not concern each other, and none takes from another what it owns."""

import pytest

from tests.processes.replica import Replica

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1800)]

COPY, CAUGHT_UP, PREPARE = "replication.public__customers.data_sync", "replication.caught_up", "replication.prepare"


def test_two_dags_with_a_group_of_one_name_have_a_pipeline_each(replica: Replica) -> None:
    for dag in ("first", "second"):
        assert replica.run_of(dag)[1] == "success"
    again, state = replica.run_of("first")
    assert state == "success"
    tasks = replica.rest.tasks("first", again)
    assert (tasks[COPY].state, tasks[CAUGHT_UP].state) == ("skipped", "success"), "nothing was taken from it"
    pipelines = "select id, owner from pgetl.pipelines where id like '%%_replication' order by id"
    assert replica.source.execute(pipelines) == [
        ("first_replication", "first/replication"), ("second_replication", "second/replication"),
    ]  # fmt: skip

    claimed, state = replica.run_of("third")
    assert state == "failed"
    log = replica.rest.log("third", claimed, PREPARE, replica.rest.tasks("third", claimed)[PREPARE].try_number)
    assert "belongs to first/replication" in log
    again, state = replica.run_of("first")
    assert (state, replica.rest.tasks("first", again)[COPY].state) == ("success", "skipped")
