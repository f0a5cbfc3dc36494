"""The command line, given a pipeline that a DAG declares, on the machine where Airflow runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

from tests.processes.replica import Replica, has_secret

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(600)]

SHOP, QUARTERLY = "airflow:shop", "airflow:orders_every_quarter/replication"


def said(replica: Replica, *command: str, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    given = replica.airflow.environment if environment is None else environment
    run = subprocess.run(
        [sys.executable, "-m", *command], env=dict(given), capture_output=True, text=True, timeout=120, check=False
    )
    return run.returncode, run.stdout, run.stderr


def pgetl(replica: Replica, *arguments: str, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    code, out, err = said(replica, "airflow_provider_pgetl", *arguments, environment=environment)
    assert not has_secret(out + err)
    return code, out, err


def test_the_state_of_a_dag_s_pipeline_is_shown(settled: Replica) -> None:
    code, out, err = pgetl(settled, "status", SHOP, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert {each["phase"] for each in found["tables"]} == {"Ready"}


def test_it_is_checked_in_the_name_of_its_dag(settled: Replica) -> None:
    code, out, err = pgetl(settled, "check", SHOP)
    assert code == 0, err
    assert out.splitlines()[-1] == "airflow:shop: nothing stands in the way of a run."


def test_nothing_that_airflow_logs_is_mixed_in(settled: Replica) -> None:
    quiet = {name: each for name, each in settled.airflow.environment.items() if not name.endswith("LOGGING_LEVEL")}
    code, out, err = pgetl(settled, "status", SHOP, environment=quiet)
    assert (code, err) == (0, ""), err
    assert out.startswith("Pipeline shop, ")


@pytest.mark.slow
def test_it_is_not_destroyed_while_it_streams(settled: Replica) -> None:
    code, out, err = pgetl(settled, "destroy", SHOP, "--yes")
    assert (code, out) == (2, "")
    assert "is being streamed by process" in err
    assert "Pause its DAG and mark `apply` as failed first." in err


def test_a_group_is_named_behind_its_dag(settled: Replica) -> None:
    code, _, err = pgetl(settled, "status", "airflow:orders_every_quarter")
    assert code == 2
    assert f"It declares {QUARTERLY}." in err
    code, _, err = pgetl(settled, "status", QUARTERLY)
    assert code == 0, err


@pytest.mark.parametrize("verb", ["run", *(pytest.param(verb, marks=pytest.mark.slow) for verb in ("copy", "merge"))])
def test_it_is_run_by_airflow_alone(settled: Replica, verb: str) -> None:
    code, _, err = pgetl(settled, verb, SHOP)
    assert code == 2
    assert err == "pgetl: airflow:shop is run by Airflow. Unpause its DAG, or trigger a run there.\n"


def test_a_dag_that_there_is_not(settled: Replica) -> None:
    code, _, err = pgetl(settled, "status", "airflow:shopp")
    assert code == 2
    assert err.endswith("pgetl: Airflow knows no DAG 'shopp'. `airflow dags list` lists those that it knows.\n")


@pytest.fixture
def elsewhere(settled: Replica) -> Iterator[Mapping[str, str]]:
    """The environment of a machine on which the connection is in Airflow's database alone."""
    yield {name: value for name, value in settled.airflow.environment.items() if name != "AIRFLOW_CONN_SHOP_DB"}
    said(settled, "airflow", "connections", "delete", "shop_db")


@pytest.mark.slow
def test_connections_are_those_of_airflow_s_database(settled: Replica, elsewhere: Mapping[str, str]) -> None:
    code, _, err = pgetl(settled, "status", SHOP, environment=elsewhere)
    assert code == 2
    assert "There is no Airflow connection 'shop_db'" in err
    uri = settled.airflow.environment["AIRFLOW_CONN_SHOP_DB"]
    code, _, err = said(settled, "airflow", "connections", "add", "shop_db", "--conn-uri", uri)
    assert code == 0, err
    code, out, err = pgetl(settled, "status", SHOP, environment=elsewhere)
    assert code == 0, err
    assert "Ready" in out
