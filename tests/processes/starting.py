"""An Airflow that runs, and has read its DAGs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from airflow_provider_pgetl.testing.servers.airflow_processes import Airflow
from tests.waiting import until

_SPARK = json.dumps({"conn_type": "spark", "host": "local[2]"})


@contextmanager
def airflow_with(
    dag: str, dags: Path, database: str, connections: Mapping[str, str], settings: Mapping[str, str] | None = None
) -> Iterator[Airflow]:
    """Its connections are those given, and `spark_default` and `spark_local`."""
    known = {"spark_default": _SPARK, "spark_local": _SPARK, **connections}
    with Airflow.start(dags=dags, database=database, connections=known, settings=settings) as airflow:
        rest = airflow.rest
        until(lambda: rest.has_dag(dag) or rest.import_errors(), f"the DAG {dag} is found", 600, pause=0.5)
        assert rest.import_errors() == []
        yield airflow
