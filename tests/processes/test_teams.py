"""An Airflow of several teams, in which one of them replicates; and a deadline that its run misses."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgetl.testing.servers.airflow_processes import Airflow
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases, Server
from tests.mailbox import Mailbox
from tests.waiting import until

pytestmark = [
    pytest.mark.airflow,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.parametrize("source_server", [16], indirect=True),
]

TEAM = "shop_team"
FILE = """
from datetime import timedelta

from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import AsyncCallback, DeadlineAlert, DeadlineReference

from airflow_provider_pgetl import Postgres, ReplicationDag

shop = ReplicationDag(
    "shop",
    source_conn_id="shop_db",
    tables=["public.items"],
    destination=Postgres("replica_db"),
    spark_conn_id="spark_local",
    until="caught_up",
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(seconds=1),
        callback=AsyncCallback(
            SmtpNotifier,
            {
                "smtp_conn_id": "post",
                "to": "on-call@example.com",
                "subject": "{{ dag_run.dag_id }} has not caught up",
                "html_content": "since {{ deadline.deadline_time }}",
            },
        ),
    ),
)
"""


@dataclass
class Teams:
    airflow: Airflow
    databases: Databases
    mailbox: Mailbox

    def start_triggerer(self, *connections: str) -> None:
        """The team's, with these connections in its own environment."""
        known = {"shop_db": self.databases.source.uri, "replica_db": self.databases.destination.uri}
        variables = {f"AIRFLOW_CONN_{name.upper()}": known[name] for name in connections}
        self.airflow.start_component("triggerer", "--team-name", TEAM, variables=variables)
        self.airflow.wait_until_healthy()

    def add_connection(self, conn_id: str, database: Database) -> None:
        """To Airflow's database, for the team."""
        parts = conninfo_to_dict(database.uri)
        fields = {
            "connection_id": conn_id, "conn_type": "pgetl", "team_name": TEAM, "host": parts["host"],
            "port": int(str(parts["port"])), "schema": parts["dbname"], "login": parts["user"],
            "password": parts.get("password"),
        }  # fmt: skip
        self.airflow.rest._ask("POST", "/connections", fields)

    def wait(self, condition: Callable[[], object], what: str, seconds: float = 300.0) -> None:
        until(condition, what, seconds, pause=0.5, told=lambda: self.airflow.home)

    def run(self) -> tuple[str, str]:
        """A run of the DAG, to its end; the state."""
        run = self.airflow.rest.trigger("shop")
        self.wait(lambda: self.airflow.rest.runs("shop")[run] in ("success", "failed"), f"{run} has ended")
        return run, self.airflow.rest.runs("shop")[run]


@pytest.fixture
def teams(databases: Databases, source_server: Server, tmp_path: Path) -> Iterator[Teams]:
    (tmp_path / "shop.py").write_text(FILE)
    bundle = {
        "name": "of_the_team",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(tmp_path), "refresh_interval": 5},
        "team_name": TEAM,
    }
    settings = {
        "AIRFLOW__CORE__MULTI_TEAM": "True",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
    }
    own = source_server.create_database(f"airflow_{databases.source.name}")
    databases.source.execute("create table items (id int primary key, name text)")
    databases.source.execute("insert into items select n, 'item ' || n from generate_series(1, 1000) n")
    spark = json.dumps({"conn_type": "spark", "host": "local[2]"})
    with Mailbox.opened() as mailbox:
        connections = {"spark_local": spark, "post": mailbox.connection}
        airflow = Airflow(tmp_path, own.uri, connections, settings)
        with airflow:
            airflow._migrate()
            create = [sys.executable, "-m", "airflow", "teams", "create", TEAM]
            subprocess.run(create, check=True, env=airflow.environment, capture_output=True)
            for name in ("api-server", "scheduler", "dag-processor"):
                airflow.start_component(name)
            airflow.wait_until_healthy()
            yield Teams(airflow, databases, mailbox)
    own.server.drop_database(own.name)


def test_a_team_replicates_by_connections_of_its_own(teams: Teams) -> None:
    rest = teams.airflow.rest
    teams.add_connection("shop_db", teams.databases.source)
    teams.add_connection("replica_db", teams.databases.destination)
    teams.start_triggerer("shop_db", "replica_db")
    teams.wait(lambda: rest.has_dag("shop") or rest.import_errors(), "the file is read")
    assert rest.import_errors() == []
    rest.pause("shop", False)

    run, state = teams.run()
    assert state == "success", {each.task_id: each.state for each in rest.tasks("shop", run).values()}
    query = "select * from items order by id"
    assert teams.databases.destination.execute(query) == teams.databases.source.execute(query)

    teams.wait(lambda: teams.mailbox.received, "the deadline is told", 60)
    assert teams.mailbox.received[0]["Subject"] == "shop has not caught up"

    page = rest.page("/pgetl/pipelines/shop").text
    assert "public.items" in page, page
    status = [sys.executable, "-m", "airflow_provider_pgetl", "status", "airflow:shop"]
    done = subprocess.run(status, check=False, capture_output=True, text=True, env=teams.airflow.environment)
    assert "public.items" in done.stdout, done.stderr

    teams.airflow.stop_component("triggerer")
    teams.start_triggerer()
    run, state = teams.run()
    assert state == "failed"
    log = rest.log("shop", run, "apply", rest.tasks("shop", run)["apply"].try_number)
    assert "There is no Airflow connection" in log
    assert "A triggerer does not see connections of a team" in log
