"""Whoever is scheduled on changes of a replica that streams for ever."""

import logging
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_pgetl import replica_changes

_CHANGED = replica_changes("shop", "public.orders", state_conn_id="shop_db", at_most_every=timedelta(seconds=5))

with DAG("orders_changed", schedule=[_CHANGED], max_active_runs=1) as orders_changed:

    @task
    def tell(triggering_asset_events: Any = None) -> None:
        events = [event for events in triggering_asset_events.values() for event in events]
        payloads = [event.extra["payload"] for event in events if "payload" in event.extra]
        logging.getLogger(__name__).warning("CHANGED up to %s", [payload["position"] for payload in payloads])
        logging.getLogger(__name__).warning("CHANGED rows %s", [payload["rows"] for payload in payloads])
        logging.getLogger(__name__).warning("CHANGED at %s", [payload["committed"] for payload in payloads])

    tell()
