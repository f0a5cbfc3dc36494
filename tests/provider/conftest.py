"""Airflow as a library: its home in a folder that goes, its connections in the environment."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Databases

# Airflow reads this when it is imported, and writes its configuration there.
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="pgetl-airflow-"))
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__UNIT_TEST_MODE"] = "False"


@pytest.fixture(autouse=True)
def _no_scheduler_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triggers fire when they can."""
    from airflow_provider_pgetl.triggers.pgetl import PipelineTrigger

    monkeypatch.setattr(PipelineTrigger, "least_seconds", 0.0)


@dataclass
class AskedAirflow:
    """What Airflow answers about the tasks of a run, and of others: by default, that `apply` runs."""

    states: dict[str, str | None] = field(default_factory=lambda: {"apply": "deferred"})
    alive_elsewhere: int = 0

    def get_task_states(self, *, dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, Any]:
        return {run: {task: self.states[task] for task in task_ids if task in self.states} for run in run_ids}

    def get_ti_count(self, *, dag_id: str, task_ids: list[str], states: list[str]) -> int:
        return self.alive_elsewhere


@pytest.fixture(autouse=True)
def asked_airflow(monkeypatch: pytest.MonkeyPatch) -> AskedAirflow:
    """Outside of Airflow's processes nobody answers."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    asked = AskedAirflow()
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", asked.get_task_states)
    monkeypatch.setattr(RuntimeTaskInstance, "get_ti_count", asked.get_ti_count)
    return asked


@pytest.fixture
def airflow_connections(monkeypatch: pytest.MonkeyPatch, databases: Databases) -> Databases:
    """`shop_db`, `replica_db`, on fresh databases, and `spark_local`, which is the default as well."""
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", databases.source.uri)
    monkeypatch.setenv("AIRFLOW_CONN_REPLICA_DB", databases.destination.uri)
    for name in ("SPARK_LOCAL", "SPARK_DEFAULT"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", '{"conn_type": "spark", "host": "local[2]"}')
    return databases


@pytest.fixture
def small_shop(airflow_connections: Databases) -> Databases:
    """Three tables with a few rows."""
    source = airflow_connections.source
    source.execute("create table customers (id int primary key, name text)")
    source.execute("create table orders (id int primary key, customer int, total numeric(10, 2))")
    source.execute("create table notes (id int primary key, note text)")
    source.execute("insert into customers select n, 'customer ' || n from generate_series(1, 200) n")
    source.execute("insert into orders select n, n % 200 + 1, n * 1.25 from generate_series(1, 2000) n")
    return airflow_connections


@pytest.fixture
def table(small_shop: Databases) -> Iterator[Any]:
    from tests.provider.table import Table

    table = Table(small_shop)
    yield table
    table.pipeline.close()


def pytest_sessionfinish() -> None:
    home = Path(os.environ["AIRFLOW_HOME"])
    if home.name.startswith("pgetl-airflow-") and home.is_dir():
        import shutil

        shutil.rmtree(home, ignore_errors=True)
