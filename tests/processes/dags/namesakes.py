"""Two DAGs that each have a group of one name, on one source; and a third that claims what is the first one's."""

from airflow.sdk import DAG

from airflow_provider_pgetl import Postgres, ReplicationTaskGroup, Table

for name, claims in (("first", None), ("second", None), ("third", "first_replication")):
    with DAG(name, schedule=None, max_active_runs=1):
        ReplicationTaskGroup(
            "replication",
            pipeline_id=claims,
            source_conn_id="shop_db",
            tables=[Table("public.customers" if claims is None else "public.products", destination=f"{name}.copy")],
            destination=Postgres("replica_db"),
        )
