"""Deploy mode cluster. There is no YARN here: its part, bringing files to a driver that has nothing else, is played by
a stand-in for spark-submit; the driver is the real one, on the real Spark."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from airflow_provider_pgetl import Postgres, ReplicationDag
from airflow_provider_pgetl.declarations import declare
from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyTable
from airflow_provider_pgetl.engine.copy.attempt import ATTEMPT_SECONDS
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import COPYING, phase_name
from airflow_provider_pgetl.engine.model.reports import nobody
from airflow_provider_pgetl.engine.monitoring.surveys import survey
from airflow_provider_pgetl.engine.spark.submission import COPY, MERGE, spark_submit
from airflow_provider_pgetl.spark_submission import ship, submit
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.provider.running import MiniAirflow, task
from tests.waiting import until

SECRETS = {"PGETL_SOURCE_URI": "postgresql://u:hush@s/d", "PGETL_STATE_URI": "postgresql://u:hush@s/d"}
ENVIRONMENT = {**SECRETS, "PGETL_DESTINATION_URI": "postgresql://u:hush@t/d", "OTHER": "not theirs", "PATH": "/bin"}


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is packed and never sent goes with the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def job(spark_submit: str = "") -> CopyJob:
    declared = declare(
        "shop",
        source_conn_id="a",
        state_conn_id="c",
        tables=["public.t"],
        destination=Postgres("b"),
        spark_submit=spark_submit,
    )
    return CopyJob(declared.spec, tuple(CopyTable(table, table) for table in declared.tables))


def test_yarn_is_given_the_job_and_in_a_private_file_what_it_refers_to() -> None:
    shipment = ship(job(), "yarn", ENVIRONMENT)
    file, secrets = shipment.files
    assert shipment.arguments == (file.name, "--secrets", secrets.name), "as the driver finds them in its own folder"
    assert json.loads(secrets.read_text()) == {key: ENVIRONMENT[key] for key in ENVIRONMENT if key.startswith("PGETL")}
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o600
    assert "hush" not in file.read_text()
    assert not set(shipment.environment) & {key for key in ENVIRONMENT if key.startswith("PGETL")}
    assert shipment.settings == {"spark.yarn.maxAppAttempts": "1"}


def test_what_the_job_does_not_refer_to_goes_nowhere() -> None:
    """Here the state is in the source, so that there is no reference to it."""
    declared = declare("shop", source_conn_id="a", tables=["public.t"], destination=Postgres("b"))
    shipment = ship(CopyJob(declared.spec, ()), "yarn", ENVIRONMENT)
    assert "PGETL_STATE_URI" not in shipment.files[1].read_text()
    assert not any("hush" in value for value in shipment.environment.values())


def test_kubernetes_is_given_no_secret_and_must_have_them() -> None:
    with pytest.raises(PgetlError) as caught:
        ship(job(), "k8s://https://there", ENVIRONMENT)
    for name in SECRETS:
        assert f"--conf spark.kubernetes.driver.secretKeyRef.{name}=" in caught.value.remedy
    names = (*SECRETS, "PGETL_DESTINATION_URI")
    given = " ".join(f"--conf spark.kubernetes.driver.secretKeyRef.{name}=shop:{name}" for name in names)
    shipment = ship(job(given), "k8s://https://there", ENVIRONMENT)
    assert [file.name for file in shipment.files] == list(shipment.arguments)
    assert not any("hush" in path.read_text() for path in shipment.parcel.folder.glob("*.json"))


def connection(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    described = {"conn_type": "spark", "host": host, "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps(described))


@pytest.mark.parametrize("master", ["spark://there:7077", "local[2]"])
def test_where_spark_would_refuse_it_it_is_refused_with_a_way_on(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    connection(monkeypatch, master)
    with pytest.raises(PgetlError, match="YARN and Kubernetes") as caught:
        submit(COPY, job(), "cluster", nobody, ENVIRONMENT)
    assert "executors run on the cluster all the same" in caught.value.remedy


def test_a_merge_has_no_store_to_leave_its_result_in(monkeypatch: pytest.MonkeyPatch) -> None:
    connection(monkeypatch, "yarn")
    with pytest.raises(PgetlError, match="A merge reports"):
        submit(MERGE, job(), "cluster", nobody, ENVIRONMENT)


def test_the_mode_is_the_connection_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", json.dumps({"conn_type": "spark", "host": "yarn"}))
    with pytest.raises(PgetlError, match="name a deploy mode"):
        submit(COPY, job("--deploy-mode cluster"), "cluster", nobody, ENVIRONMENT)


# Brings the files to a folder of their own, and runs the application there with an environment of its own; its output
# is nobody's. What it was called with is left in a file.
STAND_IN = """
    #!{python}
    import json, os, shutil, subprocess, sys, tempfile
    words = sys.argv[1:]
    with open({seen!r}, "w") as seen:
        json.dump({{"command": words, "environment": dict(os.environ)}}, seen)
    assert words[words.index("--deploy-mode") + 1] == "cluster"
    application = next(number for number, word in enumerate(words) if word.endswith("copy_table.py"))
    container = tempfile.mkdtemp(dir={containers!r})
    for option in ("--files", "--py-files"):
        for file in words[words.index(option) + 1].split(","):
            shutil.copy(file, container)
    program = shutil.copy(words[application], container)
    ours = os.path.join(container, "airflow_provider_pgetl.zip")
    command = [{submit!r}, "--master", "local-cluster[1,2,1024]", "--conf", "spark.ui.enabled=false"]
    command += ["--conf", "spark.executor.memory=1g", "--py-files", ours, program]
    done = subprocess.run(
        [*command, *words[application + 1 :]], cwd=container, env={environment!r}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True,
    )
    sys.exit(1 if done.returncode else 0)
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its spark-submit is found first; answers the file with what that was called with."""
    seen, containers, tools = tmp_path / "seen.json", tmp_path / "containers", tmp_path / "bin"
    containers.mkdir()
    tools.mkdir()
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "JAVA_HOME") if key in os.environ}
    text = STAND_IN.format(
        python=sys.executable,
        seen=str(seen),
        containers=str(containers),
        submit=str(spark_submit()),
        environment={**kept, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
    )
    tool = tools / "spark-submit"
    tool.write_text(textwrap.dedent(text).lstrip())
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    connection(monkeypatch, "yarn")
    return seen


def shop() -> ReplicationDag:
    return ReplicationDag(
        "shop", source_conn_id="shop_db", tables=["public.orders"], destination=Postgres("replica_db"),
        spark_conn_id="cluster", until="caught_up",
    )  # fmt: skip


def drivers(cluster: Path) -> list[psutil.Process]:
    """The Python ones in the containers."""
    containers = str(cluster.with_name("containers"))
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            program = words[1] if len(words) > 1 and "python" in words[0] else ""
            if program.startswith(containers):
                found.append(process)
    return found


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_a_run_with_the_driver_elsewhere(small_shop: Databases, cluster: Path) -> None:
    with MiniAirflow(shop()) as airflow:
        done = airflow.run_all()
    assert {one.task: one.error for one in done.values() if one.error} == {}
    query = "select * from orders order by id"
    assert small_shop.source.execute(query) == small_shop.destination.execute(query)
    seen = json.loads(cluster.read_text())
    assert "not%20a%20secret" not in json.dumps(seen["command"])
    assert [name for name in seen["environment"] if name.startswith("PGETL_")] == [], "nobody there needs them"


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("source_server", [16], indirect=True)
def test_a_driver_elsewhere_ends_by_itself_when_its_task_is_killed(small_shop: Databases, cluster: Path) -> None:
    dag = shop()
    copy = task(dag, "public__orders.data_sync")
    with MiniAirflow(dag) as airflow:
        airflow.run("prepare").must_succeed()
        copying = airflow.start(copy.task_id)
        until(lambda: drivers(cluster), "a driver runs", 60)
        with small_shop.source.connect(autocommit=False) as session:
            session.execute("lock table orders in access exclusive mode")
            copy.on_kill()
            assert copying.result(60).error is not None
            assert drivers(cluster), "nobody could reach it"
            time.sleep(ATTEMPT_SECONDS / 2)
        until(lambda: not drivers(cluster), "no driver runs", 30)
    found = survey(small_shop.source.uri, "shop")
    assert found is not None
    assert phase_name(found.tables[0].state.phase) in COPYING
    assert small_shop.destination.execute("select to_regclass('orders') is null") == [(True,)]
