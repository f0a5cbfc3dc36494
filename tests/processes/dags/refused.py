"""A stream of a table that there is not, until a test makes it."""

from airflow_provider_pgetl import Postgres, ReplicationDag, Table

refused = ReplicationDag(
    "refused",
    source_conn_id="shop_db",
    tables=[Table("public.late", destination="refused.late")],
    destination=Postgres("replica_db"),
)
