"""The shop, replicated into Delta tables, for as long as this DAG is not paused."""

import os

from airflow_provider_pgetl import DeltaLake, ReplicationDag

shop_to_delta = ReplicationDag(
    "shop_to_delta",
    source_conn_id="shop_db",
    tables=[
        "public.customers",
        "public.products",
        "public.inventory",
        "public.orders",
        "public.order_lines",
        "public.payments",
    ],
    destination=DeltaLake(os.environ["PGETL_DEMO_LAKE"]),
    spark_conn_id="spark_default",
)
