"""From an Airflow connection to the process that copies."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl import Postgres, ReplicationDag
from airflow_provider_pgetl.declarations import declare
from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyTable, MergeResult
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.reports import nobody
from airflow_provider_pgetl.engine.spark.submission import COPY, MERGE, spark_submit
from airflow_provider_pgetl.spark_submission import CommandHook, spark_connection, submit
from airflow_provider_pgetl.testing.servers.installations import free_port
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.engine.stream.test_merging import Lake
from tests.provider.running import MiniAirflow

DECLARED = declare(
    "shop", source_conn_id="a", tables=["public.t"], destination=Postgres("b"), spark_submit="--queue 'a b'"
)
JOB = CopyJob(DECLARED.spec, tuple(CopyTable(table, table) for table in DECLARED.tables))


def test_a_missing_connection_is_an_error_and_never_yarn() -> None:
    with pytest.raises(PgetlError, match="no Airflow connection 'nowhere'"):
        spark_connection("nowhere")


def test_a_foreign_connection_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ODD", "postgresql://h/d")
    with pytest.raises(PgetlError, match="'odd' is of type 'postgres'"):
        spark_connection("odd")


def test_the_command_is_airflows_with_our_settings_and_a_persons_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_FAR", '{"conn_type": "spark", "host": "spark://m", "port": 7077}')
    monkeypatch.setenv("PATH", "/nowhere")
    command = CommandHook(COPY.title(JOB), "far").command(DECLARED.spec.spark, COPY.path, [Path("/p/ours.zip")])
    assert command[0] == str(spark_submit())
    assert command[command.index("--master") + 1] == "spark://m:7077"
    assert command[command.index("--py-files") + 1] == "/p/ours.zip"
    assert "spark.speculation=false" in command
    assert command[-3:-1] == ["--queue", "a b"]
    assert command[-1].endswith("copy_table.py")


def _wait_for(port: int) -> None:
    """Until somebody listens there."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise AssertionError(f"nobody listens on port {port}")


@pytest.fixture(scope="module")
def connect_server() -> Iterator[int]:
    """A Spark Connect server of its own."""
    port = free_port()
    command = [str(spark_submit()), "--master", "local[2]", "--conf", f"spark.connect.grpc.binding.port={port}"]
    command += ["--conf", "spark.ui.enabled=false"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        _wait_for(port)
        yield port
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.spark
@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_a_run_by_spark_connect(small_shop: Databases, connect_server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"spark-connect://127.0.0.1:{connect_server}"
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_THERE", uri)
    assert spark_connection("spark_there").conn_type == "spark_connect"
    dag = ReplicationDag(
        "shop", source_conn_id="shop_db", tables=["public.orders"], destination=Postgres("replica_db"),
        spark_conn_id="spark_there", until="caught_up",
    )  # fmt: skip
    with MiniAirflow(dag) as airflow:
        done = airflow.run_all()
    assert {one.task: one.error for one in done.values() if one.error} == {}
    query = "select * from orders order by id"
    assert small_shop.source.execute(query) == small_shop.destination.execute(query)


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[int]:
    """A standalone cluster of one worker; its master's port."""
    port, classes = free_port(), spark_submit().with_name("spark-class")
    master = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
    worker = ["org.apache.spark.deploy.worker.Worker", f"spark://127.0.0.1:{port}", "--host", "127.0.0.1"]
    worker += ["--webui-port", "0", "--cores", "2", "--memory", "2g", "--work-dir", str(tmp_path)]
    # Not this one's environment: an executor has what Spark gives it.
    environment = {key: os.environ[key] for key in ("PATH", "HOME", "JAVA_HOME") if key in os.environ}
    running = []
    try:
        for command in (master, worker):
            running.append(
                subprocess.Popen(
                    [str(classes), *command], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            )
            _wait_for(port)
        yield port
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_a_run_on_a_standalone_cluster(small_shop: Databases, standalone: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_THERE", f"spark://127.0.0.1:{standalone}")
    dag = ReplicationDag(
        "shop", source_conn_id="shop_db", tables=["public.orders"], destination=Postgres("replica_db"),
        spark_conn_id="spark_there", until="caught_up",
    )  # fmt: skip
    with MiniAirflow(dag) as airflow:
        done = airflow.run_all()
    assert {one.task: one.error for one in done.values() if one.error} == {}
    query = "select * from orders order by id"
    assert small_shop.source.execute(query) == small_shop.destination.execute(query)


@pytest.mark.spark
def test_a_merge_by_spark_connect(connect_server: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_THERE", f"spark-connect://127.0.0.1:{connect_server}")
    monkeypatch.setenv("PGETL_TEST_LAKE_SECRET", "unknown to the server")
    lake = Lake(tmp_path / "lake", 2)
    result = submit(MERGE, lake.job(), "spark_there", nobody, os.environ).wait(120)
    assert result == MergeResult({one.schema.table: 2 for one in lake.replicas}), result
    lake.assert_merged()
