"""The shop of the demo, in runs that a test triggers; what fails is retried soon."""

from datetime import timedelta

from airflow_provider_pgetl import Postgres, ReplicationDag

shop = ReplicationDag(
    "shop",
    schedule=None,
    source_conn_id="{{ dag.dag_id }}_db",
    tables=[
        "public.customers",
        "public.products",
        "public.inventory",
        "public.orders",
        "public.order_lines",
        "public.payments",
    ],
    destination=Postgres("copy_db"),
    default_args={"retries": 3, "retry_delay": timedelta(seconds=1), "retry_exponential_backoff": False},
)
