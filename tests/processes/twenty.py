"""Twenty small tables and more, continuously, with a task behind one of them. A test edits this file."""

from datetime import timedelta

from airflow.providers.standard.operators.empty import EmptyOperator

from airflow_provider_pgetl import Postgres, ReplicationDag

twenty = ReplicationDag(
    "twenty",
    source_conn_id="shop_db",
    tables=[f"many.t{number:02}" for number in range(1, 21)],
    destination=Postgres("replica_db"),
    rotate_after=timedelta(seconds=3600),
    default_args={"retries": 3, "retry_delay": timedelta(seconds=1), "retry_exponential_backoff": False},
)
twenty["many.t01"].ready >> EmptyOperator(task_id="behind", dag=twenty)
