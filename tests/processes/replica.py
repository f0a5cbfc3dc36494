"""A shop replicated by a real Airflow, and what a test asks of it and does to it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import sqlalchemy

from airflow_provider_pgetl.connections import DESTINATION, SOURCE, STATE
from airflow_provider_pgetl.declarations import Postgres, declare
from airflow_provider_pgetl.demo.shop import TABLES, Trade, create_shop
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import TableState, phase_name
from airflow_provider_pgetl.engine.model.results import Status
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.running_airflow import RELEASE
from airflow_provider_pgetl.testing import comparing
from airflow_provider_pgetl.testing.servers.airflow_processes import Airflow, AirflowRest, Task
from airflow_provider_pgetl.testing.servers.postgres_servers import PASSWORD, Database, Server
from tests.processes.deployment import deployment
from tests.processes.starting import airflow_with
from tests.processes.statsd import StatsdListener
from tests.waiting import until

DAG = "shop"
STEPS = ("init", "data_sync", "finished_copy", "sync_done", "ready")
_DAGS = Path(__file__).with_name("dags")
_EXAMPLES = Path(__file__).parents[2] / "dags"
_NEEDS_3_2 = {"partitioned"}  # there are no partitions before
_ORDERS = 20_000

_STALLS = Path(__file__).with_name("stalls")

# A worker that was killed is missed after half a minute instead of five. No test edits these DAGs, and to read them
# again every few seconds would keep a processor busy.
_SETTINGS = {
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "120",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "20",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "10",
    "PYTHONASYNCIODEBUG": os.environ.get("PYTHONASYNCIODEBUG", "1"),
}


# A password as it stands in connections, and as it stands in their addresses.
_SPELLINGS = (PASSWORD, PASSWORD.replace(" ", "%20"))


def has_secret(text: str) -> bool:
    return any(spelling in text for spelling in _SPELLINGS)


def task_of(table: TableName | str, step: str) -> str:
    name = str(table).replace("public.", "")
    return f"public__{name}.{step}"


@dataclass
class Replica:
    """Everything that runs; `run` is the DAG run that the tests work on, `first_pass` how its tasks first came out,
    once they have.

    `examples` is where the example DAGs replicate to, which stay paused until a test wants them. `stalls` has a line
    for whatever held up the triggerer's event loop.
    """

    source: Database
    destination: Database
    examples: Database
    trade: Trade
    metrics: StatsdListener
    airflow: Airflow
    pipeline: Pipeline
    stalls: Path
    run: str = ""
    first_pass: Mapping[str, Task] = field(default_factory=dict)

    @property
    def rest(self) -> AirflowRest:
        return self.airflow.rest

    # -- looking ------------------------------------------------------------------------------------------------------

    def tasks(self) -> Mapping[str, Task]:
        return self.rest.tasks(DAG, self.run)

    def metadata(self) -> sqlalchemy.Engine:
        """Airflow's own database."""
        return sqlalchemy.create_engine(
            self.airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"], poolclass=sqlalchemy.NullPool
        )

    def log(self, task_id: str) -> str:
        """Of the latest attempt."""
        return self.rest.log(DAG, self.run, task_id, self.tasks()[task_id].try_number)

    def status(self) -> Status | None:
        """None while the source, which keeps the state, does not answer."""
        try:
            return self.pipeline.status()
        except PgetlError:
            return None

    def states(self) -> Mapping[TableName, TableState]:
        status = self.status()
        return {} if status is None else {each.table: each.state for each in status.tables}

    def state(self, table: TableName) -> TableState:
        self.wait(lambda: table in self.states(), "the store answers")
        return self.states()[table]

    def phase(self, table: TableName) -> str:
        return phase_name(self.state(table).phase)

    def generations(self) -> dict[TableName, int]:
        return {table: state.generation for table, state in self.states().items()}

    def processes(self, word: str) -> list[psutil.Process]:
        """Those of this Airflow with a word in their command line."""
        return [each for each in self.airflow.members() if word in command_of(each)]

    def drivers(self) -> list[psutil.Process]:
        """The copies under way, by the first process of each."""
        found = self.processes("copy_table.py")
        pids = {each.pid for each in found}
        return [each for each in found if each.ppid() not in pids]

    # -- acting -------------------------------------------------------------------------------------------------------

    def clear(self, task_id: str) -> list[str]:
        return self.rest.clear(DAG, self.run, task_id)

    def mark(self, task_id: str, state: str) -> None:
        self.rest.mark(DAG, self.run, task_id, state)

    def run_of(self, dag: str) -> tuple[str, str]:
        """A run of another DAG, to its end; its id and state."""
        self.rest.pause(dag, False)
        run = self.rest.trigger(dag)
        self.wait(lambda: self.rest.runs(dag)[run] in ("success", "failed"), f"{run} of {dag} has ended")
        self.rest.pause(dag)
        return run, self.rest.runs(dag)[run]

    def stop(self, dag: str) -> None:
        """Pauses another DAG that streams, and ends its runs."""
        self.rest.pause(dag)
        for run, state in self.rest.runs(dag).items():
            if state == "running":
                self.rest.mark(dag, run, "apply", "failed")
        self.wait(lambda: len(self.processes("streaming_process")) == 1, "it has stopped")

    # -- waiting ------------------------------------------------------------------------------------------------------

    def wait(self, condition: Callable[[], bool], what: str, timeout: float = 600.0) -> None:
        until(condition, what, timeout, pause=0.5, check=self.trade.check, told=self.situation)

    def wait_for(self, task_id: str, *states: str | None, timeout: float = 600.0) -> None:
        self.wait(
            lambda: self.tasks()[task_id].state in states, f"{task_id} is {' or '.join(map(str, states))}", timeout
        )

    def wait_until_settled(self, timeout: float = 900.0) -> None:
        """Every table Ready, every task of a table successful or passed over, `apply` deferred and streaming, and no
        slot but its own."""
        self.wait(self._is_settled, "all is settled", timeout)
        self.first_pass = self.first_pass or self.tasks()

    def wait_until_ready(self, timeout: float = 900.0) -> None:
        """Every table Ready, the pipeline streamed, and no slot but that of the stream."""
        self.wait(self._pipeline_is_settled, "all tables are Ready", timeout)

    def _is_settled(self) -> bool:
        return self._tasks_are_settled() and self._pipeline_is_settled()

    def _tasks_are_settled(self) -> bool:
        states = {task_id: task.state for task_id, task in self.tasks().items()}
        return states.pop("apply") == "deferred" and set(states.values()) <= {"success", "skipped"}

    def _pipeline_is_settled(self) -> bool:
        status = self.status()
        if status is None or status.lease is None or status.slots is None:
            return False
        phases = {phase_name(each.state.phase) for each in status.tables}
        return phases == {"Ready"} and [slot.stream for slot in status.slots] == ["apply"]

    def situation(self) -> str:
        tasks = {task_id: task.state for task_id, task in self.tasks().items() if task.state != "success"}
        phases = {str(table): state.phase for table, state in self.states().items()}
        return f"tasks that are not successful: {tasks}\nphases: {phases}\nhealth: {self.rest.health()}"

    # -- comparing ----------------------------------------------------------------------------------------------------

    def assert_equal(self) -> None:
        """The load stops for as long as it takes to compare."""
        self.trade.pause()
        try:
            self._wait_until_caught_up()
            with self.source.connect() as here, self.destination.connect() as there:
                found = comparing.differences(here, there, TABLES)
            assert not found, "\n".join(found)
        finally:
            self.trade.resume()

    def _wait_until_caught_up(self) -> None:
        [(end,)] = self.source.execute("select pg_current_wal_flush_lsn()")
        confirmed = "select min(confirmed_flush_lsn) >= %s from pg_replication_slots where slot_name = any(%s)"
        slots = [slot.name for slot in (status.slots or ())] if (status := self.status()) else []
        self.wait(lambda: self.source.execute(confirmed, [end, slots]) == [(True,)], "it has caught up")


def command_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@contextmanager
def replicated_shop() -> Iterator[Replica]:
    """Servers, load, Airflow, and a run in which all tables become Ready."""
    with ExitStack() as stack:
        source = stack.enter_context(Server.start(18)).create_database("shop")
        other = stack.enter_context(Server.start(16))
        destination, examples = other.create_database("replica"), other.create_database("examples")
        with source.connect(autocommit=False) as session:
            create_shop(session, _ORDERS)
        trade = stack.enter_context(Trade(source.uri, per_second=20))
        metrics = stack.enter_context(StatsdListener())
        deployed = stack.enter_context(deployment(other))
        stalls = Path(stack.enter_context(TemporaryDirectory(prefix="pgetl-stalls-"))) / "stalls.txt"
        connections = {"shop_db": source.uri, "copy_db": destination.uri, "replica_db": examples.uri}
        settings = {**_SETTINGS, **metrics.settings, **deployed.settings, **_watching(stalls)}
        dags = stack.enter_context(_all_dags())
        airflow = stack.enter_context(airflow_with(DAG, dags, deployed.database, connections, settings))
        pipeline = stack.enter_context(closing(_pipeline(source, destination)))
        replica = Replica(source, destination, examples, trade, metrics, airflow, pipeline, stalls)
        airflow.rest.pause(DAG, False)
        replica.run = airflow.rest.trigger(DAG)
        yield replica


def _watching(stalls: Path) -> Mapping[str, str]:
    path = os.pathsep.join(filter(None, (str(_STALLS), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "PGETL_TEST_STALLS": str(stalls)}


@contextmanager
def _all_dags() -> Iterator[Path]:
    """The tests' own DAGs, and the examples."""
    with TemporaryDirectory(prefix="pgetl-dags-") as folder:
        for file in (*_DAGS.glob("*.py"), *_EXAMPLES.glob("*.py")):
            if RELEASE >= (3, 2) or file.stem not in _NEEDS_3_2:
                shutil.copy(file, folder)
        yield Path(folder)


def _pipeline(source: Database, destination: Database) -> Pipeline:
    tables = [str(table) for table in TABLES]
    replication = declare(DAG, source_conn_id="shop_db", tables=tables, destination=Postgres("copy_db"))
    environment = {SOURCE: source.uri, STATE: source.uri, DESTINATION: destination.uri}
    return Pipeline(replication.spec, environment={**os.environ, **environment})
