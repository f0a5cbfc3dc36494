"""A shop's tables, replicated into another Postgres, continuously.

Wants three connections: `shop_db` and `replica_db` of type postgres, and `spark_local` of type spark (host `local[*]`,
or the address of a cluster's master).
"""

from airflow_provider_pgetl import Copying, Postgres, ReplicationDag, Table

shop_to_postgres = ReplicationDag(
    dag_id="shop_to_postgres",
    description="The shop's tables, copied once and followed from there on",
    source_conn_id="shop_db",
    tables=[
        "public.customers",
        "public.products",
        Table("public.orders", destination="sales.orders"),
        Table("public.order_lines", destination="sales.order_lines"),
    ],
    destination=Postgres("replica_db"),
    spark_conn_id="spark_local",
    copying=Copying(table_workers=2),
    tags=["replication"],
)
