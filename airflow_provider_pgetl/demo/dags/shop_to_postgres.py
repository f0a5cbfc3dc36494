"""The shop, replicated into another Postgres, for as long as this DAG is not paused."""

from airflow_provider_pgetl import Postgres, ReplicationDag

shop_to_postgres = ReplicationDag(
    "shop_to_postgres",
    source_conn_id="shop_db",
    tables=[
        "public.customers",
        "public.products",
        "public.inventory",
        "public.orders",
        "public.order_lines",
        "public.payments",
    ],
    destination=Postgres("replica_db"),
    spark_conn_id="spark_default",
)
