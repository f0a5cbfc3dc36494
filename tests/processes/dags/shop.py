"""The shop of the demo, in runs that a test triggers; what fails is retried soon."""

import logging
from datetime import timedelta
from typing import Any

from airflow_provider_pgetl import Postgres, ReplicationDag, Streaming


def tell(context: Any) -> None:
    logging.getLogger(__name__).warning("TOLD of %s: %s", context["table"], context["reason"])


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
    streaming=Streaming(grace="30s", outage="10min", on_table_errored=tell),
    default_args={"retries": 3, "retry_delay": timedelta(seconds=1), "retry_exponential_backoff": False},
)
