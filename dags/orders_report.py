"""Replication as a step of a DAG of one's own, and another DAG that runs whenever the replica is up to date.

Every quarter of an hour the tables are brought up to what was committed at the source by then; what follows the group
sees all of it. `sales_report` does not know that DAG: it is scheduled on the replica.

Wants the connections of `shop_to_postgres`.
"""

from datetime import UTC, datetime, timedelta

from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator
from airflow.sdk import DAG

from airflow_provider_pgetl import Postgres, ReplicationTaskGroup, Table, replica_asset

with DAG(
    "orders_every_quarter",
    schedule=timedelta(minutes=15),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["replication"],
):
    replication = ReplicationTaskGroup(
        "replication",
        pipeline_id="orders_report",
        source_conn_id="shop_db",
        tables=[
            Table("public.customers", destination="report.customers"),
            Table("public.orders", destination="report.orders"),
        ],
        destination=Postgres("replica_db"),
        spark_conn_id="spark_local",
    )
    analyze = SQLExecuteQueryOperator(task_id="analyze", conn_id="replica_db", sql="analyze report.orders")
    replication >> analyze

with DAG(
    "sales_report",
    schedule=[replica_asset("orders_report", "public.orders")],
    tags=["replication"],
) as sales_report:
    SQLExecuteQueryOperator(
        task_id="totals",
        conn_id="replica_db",
        sql=[
            "create table if not exists report.totals (at timestamptz, orders bigint)",
            "insert into report.totals select now(), count(*) from report.orders",
        ],
    )
