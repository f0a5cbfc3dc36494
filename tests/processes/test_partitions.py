"""A pipeline on a partitioned schedule: its announcements are of the run's partition, by Airflow's own doing."""

from collections.abc import Iterator

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.processes.replica import Replica

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1800)]

PIPELINE, FOLLOWER = "partitioned", "of_a_partition"


@pytest.fixture
def partitions(replica: Replica) -> Iterator[Replica]:
    """What a test lets run runs no more afterwards."""
    yield replica
    replica.rest.pause(FOLLOWER)
    replica.stop(PIPELINE)


def keys(replica: Replica, dag: str) -> dict[str, str]:
    """Of the runs that have succeeded."""
    query = "select run_id, partition_key from dag_run where dag_id = %s and state = 'success'"
    return dict(Database(replica.destination.server, "airflow").execute(query, [dag]))


def test_who_is_scheduled_on_partitions_runs_for_each_that_the_pipeline_has_brought(partitions: Replica) -> None:
    for dag in (PIPELINE, FOLLOWER):
        partitions.rest.pause(dag, False)
    partitions.wait(lambda: bool(keys(partitions, PIPELINE)), "the pipeline has brought a partition")
    key = next(iter(keys(partitions, PIPELINE).values()))
    assert key.endswith(":00")
    partitions.wait(lambda: key in keys(partitions, FOLLOWER).values(), "the partition is followed")
    run = next(run for run, followed in keys(partitions, FOLLOWER).items() if followed == key)
    assert f"PARTITION {key}" in partitions.rest.log(FOLLOWER, run, "tell", 1)
    events = "select distinct e.partition_key is null from asset_event e where source_dag_id = %s"
    airflow = Database(partitions.destination.server, "airflow")
    assert airflow.execute(events, [PIPELINE]) == [(False,)]
