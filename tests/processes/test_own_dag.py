"""What a new user writes, by the docs alone: the file that stands in docs/how-to/own-dag.md, run as it stands there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.airflow_processes import Airflow
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server
from tests.processes.starting import airflow_with
from tests.waiting import until

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(2400)]

DOCS = (Path(__file__).parents[2] / "docs" / "how-to" / "own-dag.md").read_text()
SECTION = DOCS.partition("\n## A DAG of your own\n")[2].partition("\n## ")[0]
DAG_FILE, ALERTS = re.findall(r"^```python\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
REPORTS, LIVE, CHANGED = "shop_reports", "shop_live", "orders_changed"
SLOTS = "select count(*) from pg_replication_slots where slot_name like %s"


@dataclass
class Shop:
    airflow: Airflow
    source: Database
    replica: Database
    live: Database

    def wait(self, condition: Callable[[], object], what: str, seconds: float = 600.0) -> None:
        until(condition, what, seconds, pause=0.5)

    def run(self, dag: str) -> str:
        """A run that is triggered, to its end."""
        self.airflow.rest.pause(dag, False)
        run = self.airflow.rest.trigger(dag)
        self.wait(lambda: self.airflow.rest.runs(dag)[run] in ("success", "failed"), f"{run} of {dag} has ended")
        states = {name: each.state for name, each in self.airflow.rest.tasks(dag, run).items()}
        assert self.airflow.rest.runs(dag)[run] == "success", states
        return run

    def is_ready(self, task: str) -> bool:
        runs = self.airflow.rest.runs(LIVE)
        return any(self.airflow.rest.tasks(LIVE, run)[task].state == "success" for run in runs)

    def log(self, dag: str, run: str, task: str) -> str:
        return self.airflow.rest.log(dag, run, task, self.airflow.rest.tasks(dag, run)[task].try_number)

    def is_alike(self, there: Database) -> bool:
        query = "select * from orders order by id"
        return there.execute(query) == self.source.execute(query)

    def generation(self) -> int:
        query = """
        select t.generation from pgetl.history t join pgetl.pipelines p on p.key = t.pipeline
        where p.id = %s and t.table_name = 'orders' order by t.entry desc limit 1
        """
        return int(str(self.source.execute(query, [LIVE])[0][0]))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    dags, plugins = tmp_path / "dags", tmp_path / "plugins"
    dags.mkdir()
    plugins.mkdir()
    # A deadline that is missed, so that it is seen what comes of it.
    assert "interval=timedelta(minutes=30)" in DAG_FILE
    (dags / "shop.py").write_text(DAG_FILE.replace("interval=timedelta(minutes=30)", "interval=timedelta(seconds=1)"))
    (plugins / "shop_alerts.py").write_text(ALERTS)
    with Server.start(18) as here, Server.start(16) as other:
        source, replica, live = here.create_database("shop"), other.create_database("r"), other.create_database("l")
        source.execute("create table customers (id int primary key, name text)")
        source.execute("create table orders (id int primary key, customer_id int, total numeric)")
        source.execute("insert into customers select n, 'customer ' || n from generate_series(1, 100) n")
        source.execute("insert into orders select n, n % 100, n from generate_series(1, 1000) n")
        connections = {"shop_db": source.uri, "replica_db": replica.uri, "live_db": live.uri}
        settings = {"AIRFLOW__CORE__PLUGINS_FOLDER": str(plugins)}
        database = other.create_database("airflow").uri
        with airflow_with(LIVE, dags, database, connections, settings) as airflow:
            yield Shop(airflow, source, replica, live)


def test_the_file_of_the_docs_does_what_they_say(shop: Shop) -> None:
    rest = shop.airflow.rest

    # A group within a DAG, with a task behind one table and one behind all.
    run = shop.run(REPORTS)
    assert shop.is_alike(shop.replica)
    assert "orders are replicated up to 0/" in shop.log(REPORTS, run, "report_orders")
    assert "all tables are" in shop.log(REPORTS, run, "report_everything")
    triggerer = shop.airflow.log_file("triggerer")
    shop.wait(lambda: "shop_reports is late; the deadline was 2" in triggerer.read_text(), "the deadline is told", 120)
    rest.pause(REPORTS)

    # One that streams, and a DAG that runs when a table has changed.
    for dag in (LIVE, CHANGED):
        rest.pause(dag, False)
    shop.wait(lambda: shop.is_ready("public__orders.ready"), "it is copied")  # what catches up is no news of its own
    assert shop.is_alike(shop.live)
    shop.source.execute("update orders set total = 0 where id <= 7")
    shop.wait(lambda: shop.is_alike(shop.live), "it is followed")
    shop.wait(lambda: any("'updates': 7" in log for log in changes(shop)), "the DAG runs for the change")

    # Copied again by a task, and taken down by another.
    before = shop.generation()
    shop.run("shop_live_resync")
    shop.wait(lambda: shop.generation() > before, "it is reset")
    shop.wait(lambda: len(rest.runs(LIVE)) > 1, "the next run copies")
    shop.source.execute("update orders set total = 1 where id = 1")
    shop.wait(lambda: shop.is_alike(shop.live), "it is copied again, and followed")
    rest.pause(LIVE)
    for each, state in rest.runs(LIVE).items():
        if state == "running":
            rest.mark(LIVE, each, "apply", "failed")
    run = shop.run("shop_live_destroy")
    assert "Removed: Slot pgetl_shop_live_" in shop.log("shop_live_destroy", run, "destroy")
    assert shop.source.execute(SLOTS, ["pgetl_shop_live_%"]) == [(0,)]
    assert shop.is_alike(shop.live), "the data stays"


def changes(shop: Shop) -> list[str]:
    runs = [run for run, state in shop.airflow.rest.runs(CHANGED).items() if state == "success"]
    return [shop.log(CHANGED, run, "look") for run in runs]
