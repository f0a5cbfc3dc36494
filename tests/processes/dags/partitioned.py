"""A pipeline whose runs are of a partition by time, and whoever is scheduled on its partitions."""

import logging
from typing import Any

from airflow.sdk import DAG, CronPartitionTimetable, PartitionedAssetTimetable, task

from airflow_provider_pgetl import Postgres, ReplicationDag, Table, replica_asset

partitioned = ReplicationDag(
    "partitioned",
    schedule=CronPartitionTimetable("* * * * *", timezone="UTC", run_offset=-1),
    until="caught_up",
    source_conn_id="shop_db",
    tables=[Table("public.products", destination="partitioned.products")],
    destination=Postgres("replica_db"),
)

with DAG(
    "of_a_partition", schedule=PartitionedAssetTimetable(assets=replica_asset("partitioned")), max_active_runs=1
) as of_a_partition:

    @task
    def tell(dag_run: Any = None) -> None:
        logging.getLogger(__name__).warning("PARTITION %s", dag_run.partition_key)

    tell()
