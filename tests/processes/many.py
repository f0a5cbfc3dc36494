"""An Airflow of its own, with the DAG of `twenty.py` and nothing else, so that what is measured is that DAG's."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

from airflow_provider_pgetl.connections import DESTINATION, SOURCE, STATE
from airflow_provider_pgetl.declarations import Postgres, declare
from airflow_provider_pgetl.testing.servers.airflow_processes import Airflow, AirflowRest
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server
from tests.processes.starting import airflow_with
from tests.waiting import until
from tests.without_spark import LocalPipeline

DAG = "twenty"
SLOT = "select active from pg_replication_slots where slot_name ~ '^pgetl_twenty_[a-z0-9]{6}_apply$'"


@dataclass
class ManyTables:
    """A source with small tables `many.t01`, `many.t02`, …, and what replicates them."""

    source: Database
    replica: Database
    airflow: Airflow
    file: Path

    @property
    def rest(self) -> AirflowRest:
        return self.airflow.rest

    def edit(self, before: str, after: str) -> None:
        edit(self.file, before, after)

    def is_streamed(self) -> bool:
        return self.source.execute(SLOT) == [(True,)]

    def bring_on(self, tables: int) -> None:
        """All of them to Ready, without Airflow. The pipeline has no owner then, so the DAG's first run takes it."""
        names = [f"many.t{number:02}" for number in range(1, tables + 1)]
        spec = declare(DAG, source_conn_id="shop_db", tables=names, destination=Postgres("replica_db")).spec
        known = {SOURCE: self.source.uri, STATE: self.source.uri, DESTINATION: self.replica.uri}
        with patch.dict(os.environ, known), closing(LocalPipeline(replace(spec, owner=None))) as pipeline:
            pipeline.run(until_caught_up=True, stop=threading.Event())

    def pgetl(self, *command: str) -> None:
        """The command line, where Airflow's own commands run."""
        program = [sys.executable, "-m", "airflow_provider_pgetl", *command]
        subprocess.run(program, env=self.airflow.environment, check=True, timeout=180)

    def states(self, run: str) -> dict[str, str | None]:
        return {name: task.state for name, task in self.rest.tasks(DAG, run).items()}

    def succeeded(self, run: str) -> set[str]:
        return {name for name, state in self.states(run).items() if state == "success"}

    def wait(self, condition: Callable[[], bool], what: str, timeout: float = 900.0) -> None:
        until(condition, what, timeout, pause=0.5)

    def wait_until_settled(self, run: str, tables: int, timeout: float = 900.0) -> None:
        """All tables Ready, all their tasks done or passed over, and the stream under way."""
        self.wait(lambda: self._is_settled(run, tables), f"{tables} tables are settled", timeout)

    def ready(self) -> int:
        """How many tables are Ready. None are before the pipeline has a state."""
        if self.source.execute("select to_regclass('pgetl.tables') is null") == [(True,)]:
            return 0
        query = """
        select count(*) from pgetl.tables t
        join pgetl.history h on (h.pipeline, h.table_schema, h.table_name, h.entry)
                              = (t.pipeline, t.table_schema, t.table_name, t.current)
        where h.phase->>'phase' = 'Ready'
        """
        [(count,)] = self.source.execute(query)
        return int(count)

    def _is_settled(self, run: str, tables: int) -> bool:
        states = self.states(run)
        if states.pop("apply", None) != "deferred" or not self.is_streamed():
            return False
        return set(states.values()) <= {"success", "skipped", "removed"} and self.ready() == tables


def edit(file: Path, before: str, after: str) -> None:
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


@contextmanager
def many_tables(folder: Path, tables: int, *edits: tuple[str, str]) -> Iterator[ManyTables]:
    """The source has as many. `edits`: what is replaced in the DAG's file before it is first seen."""
    file = folder / "twenty.py"
    shutil.copy(Path(__file__).with_name("twenty.py"), file)
    for before, after in edits:
        edit(file, before, after)
    with ExitStack() as stack:
        source = stack.enter_context(Server.start(18)).create_database("shop")
        other = stack.enter_context(Server.start(16))
        source.execute("create schema many")
        for number in range(1, tables + 1):
            table = f"many.t{number:02}"
            source.execute(f"create table {table} as select id, 'x' as note from generate_series(1, 50) id")
            source.execute(f"alter table {table} add primary key (id)")
        replica = other.create_database("replica")
        connections = {"shop_db": source.uri, "replica_db": replica.uri}
        database = other.create_database("airflow").uri
        airflow = stack.enter_context(airflow_with(DAG, folder, database, connections))
        yield ManyTables(source, replica, airflow, file)
