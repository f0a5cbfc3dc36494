"""A shop's tables as Delta tables, continuously: for Spark, DuckDB, Polars and whatever else reads a lake.

Wants three connections: `shop_db` of type postgres, `lake` of type aws (for other stores google_cloud_platform, wasb or
adls; where the machines have a role of their own, leave `storage_conn_id` out), and `spark_local` of type spark (host
`local[*]`, or the address of a cluster's master).
"""

from airflow_provider_pgetl import DeltaLake, ReplicationDag, Streaming, Table

shop_to_lake = ReplicationDag(
    dag_id="shop_to_lake",
    description="The shop's tables in the lake, copied once and followed from there on",
    source_conn_id="shop_db",
    tables=[
        "public.customers",
        "public.products",
        Table("public.orders", destination="sales.orders"),
        Table("public.order_lines", destination="sales.order_lines"),
    ],
    destination=DeltaLake("s3://lake/shop", storage_conn_id="lake", options={"vacuum_retention": "168h"}),
    spark_conn_id="spark_local",
    streaming=Streaming(min_interval="30s"),  # each batch is a commit of each table that it changes
    tags=["replication"],
)
