"""What OpenLineage is sent by a real Airflow: a copy with its figures, a stream, and a table that is Errored."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_pgetl.testing.servers.airflow_processes import Airflow
from airflow_provider_pgetl.testing.servers.postgres_servers import PASSWORD, Database, Server
from tests.processes.replica import has_secret
from tests.processes.starting import airflow_with

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(1200)]

DAG = "told"
SETTINGS = {"AIRFLOW__OPENLINEAGE__INCLUDE_FULL_TASK_INFO": "True"}
FILE = """
from airflow.providers.standard.operators.bash import BashOperator

from airflow_provider_pgetl import Postgres, ReplicationDag, Table

told = ReplicationDag(
    "told",
    schedule=None,
    until="caught_up",
    source_conn_id="{{ dag.dag_id }}_db",
    tables=[
        "public.customers",
        Table("public.orders", columns=["id", "total"], where="id > 100", destination="sales.orders"),
    ],
    destination=Postgres("copy_db"),
    default_args={"retries": 0},
)
report = BashOperator(task_id="report", bash_command="true", dag=told, inlets=[told["public.orders"].asset])
told["public.orders"].ready >> report
"""


@dataclass
class Told:
    """An Airflow, and the folder with the events that it has sent."""

    airflow: Airflow
    source: Database
    destination: Database
    events: Path

    def run(self) -> str:
        """A run of the DAG to its end; its state."""
        run = self.airflow.rest.trigger(DAG)
        give_up_at = time.monotonic() + 300
        while (state := self.airflow.rest.runs(DAG)[run]) not in ("success", "failed"):
            assert time.monotonic() < give_up_at, self.airflow.rest.tasks(DAG, run)
            time.sleep(0.5)
        return state

    def sent(self, task: str, kind: str) -> dict[str, Any]:
        """The latest event of the kind about a task. A task has ended before its event is sent."""
        give_up_at = time.monotonic() + 30
        while not (ours := self._sent(task, kind)):
            assert time.monotonic() < give_up_at, f"no {kind} of {task}"
            time.sleep(0.5)
        return ours[-1]

    def _sent(self, task: str, kind: str) -> list[dict[str, Any]]:
        found = []
        for path in self.events.glob("*.json"):
            with suppress(json.JSONDecodeError):  # it is just being written
                found.append(json.loads(path.read_text()))
        ours = [one for one in found if (one["job"]["name"], one["eventType"]) == (f"{DAG}.{task}", kind)]
        return sorted(ours, key=lambda one: str(one["eventTime"]))


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    events, dags = tmp_path / "events", tmp_path / "dags"
    for folder in (events, dags):
        folder.mkdir()
    (dags / "told.py").write_text(FILE)
    with ExitStack() as stack:
        server = stack.enter_context(Server.start(18))
        source, destination = server.create_database("shop"), server.create_database("replica")
        source.execute("create table customers (id int primary key, name text, email text)")
        source.execute("create table orders (id int primary key, customer int, total numeric(10, 2), note text)")
        source.execute("insert into customers select n, 'customer ' || n from generate_series(1, 200) n")
        source.execute("insert into orders select n, n % 200 + 1, n * 1.25 from generate_series(1, 2000) n")
        transport = {"type": "file", "log_file_path": str(events / "event"), "append": False}
        settings = {**SETTINGS, "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(transport)}
        connections = {"told_db": source.uri, "copy_db": destination.uri}
        database = server.create_database("airflow").uri
        airflow = stack.enter_context(airflow_with(DAG, dags, database, connections, settings))
        airflow.rest.pause(DAG, False)
        yield Told(airflow, source, destination, events)


def namespace(database: Database) -> str:
    return f"postgres://127.0.0.1:{database.server.port}"


def test_copies_streams_and_errors_are_told(told: Told) -> None:
    assert told.run() == "success"
    _see_the_copy(told)
    _see_the_stream(told)

    told.destination.execute("alter table sales.orders add constraint poison check (total >= 0)")
    told.source.execute("insert into orders values (9999, 1, -1)")
    assert told.run() == "failed"
    failed = told.sent("apply", "FAIL")
    _see_the_error(failed)
    assert len(failed["outputs"]) == 2

    assert told.run() == "failed"
    failed = told.sent("public__orders.data_sync", "FAIL")
    _see_the_error(failed)
    assert "outputStatistics" not in failed["outputs"][0].get("outputFacets", {})
    assert not any(has_secret(path.read_text()) or PASSWORD in path.read_text() for path in told.events.glob("*"))


def _see_the_copy(told: Told) -> None:
    for kind in ("START", "COMPLETE"):
        sent = told.sent("public__orders.data_sync", kind)
        ([here], [there]) = sent["inputs"], sent["outputs"]
        assert (here["namespace"], here["name"]) == (namespace(told.source), "shop.public.orders")
        assert (there["namespace"], there["name"]) == (namespace(told.destination), "replica.sales.orders")
        lineage = there["facets"]["columnLineage"]
        assert {name: one["inputFields"][0]["field"] for name, one in lineage["fields"].items()} == {
            "id": "id",
            "total": "total",
        }
        assert [one["field"] for one in lineage["dataset"]] == ["id"], "by which rows are filtered"
        assert "WHERE id > 100" in sent["job"]["facets"]["sql"]["query"]
    assert [(one["name"], one["type"]) for one in there["facets"]["schema"]["fields"]] == [
        ("id", "integer"), ("total", "numeric(10,2)")
    ]  # fmt: skip
    assert there["outputFacets"]["outputStatistics"]["rowCount"] == 1900
    assert here["inputFacets"]["inputStatistics"]["rowCount"] == 1900
    assert here["inputFacets"]["inputStatistics"]["size"] >= 8192
    assert sent["run"]["facets"]["pgetl"]["tables"][0]["table"] == "public.orders"
    customers = told.sent("public__customers.data_sync", "COMPLETE")
    assert customers["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 200
    assert set(customers["outputs"][0]["facets"]["columnLineage"]["fields"]) == {"id", "name", "email"}


def _see_the_stream(told: Told) -> None:
    names = {"replica.public.customers", "replica.sales.orders"}
    assert {one["name"] for one in told.sent("apply", "START")["outputs"]} == names
    sent = told.sent("apply", "COMPLETE")
    assert {one["name"] for one in sent["outputs"]} == names
    assert all(one["facets"]["columnLineage"]["fields"] for one in sent["outputs"])
    assert {one["phase"] for one in sent["run"]["facets"]["pgetl"]["tables"]} == {"Ready"}
    assert all(one["facets"]["version"]["datasetVersion"] != "0/0" for one in sent["inputs"])
    for step in ("prepare", *(f"public__orders.{name}" for name in ("init", "finished_copy", "sync_done", "ready"))):
        done = told.sent(step, "COMPLETE")
        assert (done["inputs"], done["outputs"]) == ([], [])
    [read] = told.sent("report", "COMPLETE")["inputs"]
    [known_as] = next(one for one in sent["outputs"] if one["name"] == "replica.sales.orders")["facets"]["symlinks"][
        "identifiers"
    ]
    assert (known_as["namespace"], known_as["name"]) == (read["namespace"], read["name"])


def _see_the_error(sent: dict[str, Any]) -> None:
    message = sent["run"]["facets"]["errorMessage"]["message"]
    [table] = [one for one in sent["run"]["facets"]["pgetl"]["tables"] if one["phase"] == "Errored"]
    assert table["table"] == "public.orders"
    cure, _, then = table["remedy"].partition(", then ")
    assert then.startswith("clear the table's `data_sync`"), "which says of itself: clear this task"
    for text in ("public.orders is Errored", table["reason"], cure):
        assert text in message
