"""A stream whose runs end soon, each for the next to take over."""

from datetime import timedelta

from airflow_provider_pgetl import Postgres, ReplicationDag, Streaming, Table

rotating = ReplicationDag(
    "rotating",
    source_conn_id="shop_db",
    tables=[Table("public.customers", destination="rotated.customers")],
    destination=Postgres("replica_db"),
    rotate_after=timedelta(seconds=20),
    streaming=Streaming(grace="10s"),
)
