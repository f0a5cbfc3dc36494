"""The demo: starts servers, load and Airflow; then waits, compares, and prints the result.

Everything that is started is ended in any case: by `with` when the demo ends or is interrupted, and by watchdogs when
it is killed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from airflow_provider_pgetl.connections import SOURCE, STATE
from airflow_provider_pgetl.declarations import declare
from airflow_provider_pgetl.demo.asking import QUESTION
from airflow_provider_pgetl.demo.destinations import DESTINATIONS, DemoDestination
from airflow_provider_pgetl.demo.observing import Observation, Onlooker, Screen, answer_as_text, open_screen
from airflow_provider_pgetl.demo.shop import TABLES, Trade, create_shop
from airflow_provider_pgetl.testing.servers.airflow_processes import Airflow, AirflowError
from airflow_provider_pgetl.testing.servers.installations import ServerError
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server

DAGS = Path(__file__).with_name("dags")

_SOURCE_MAJOR, _OTHER_MAJOR = 18, 16
_READY_SECONDS = 600.0
_CATCH_UP_SECONDS = 120.0
_LOOK_SECONDS = 1.0
PAGE = "/plugin/replication"
"""Where Airflow shows the replication page: Browse → Replication."""


class DemoFailed(Exception):
    """The replica did not become equal to the source, or not in time."""


class Interrupted(Exception):
    """The user has interrupted the demo."""


@dataclass(frozen=True)
class Demo:
    """Everything that runs during the demo."""

    screen: Screen
    source: Database
    destination: DemoDestination
    trade: Trade
    airflow: Airflow
    onlooker: Onlooker
    stop: threading.Event

    def watch(self, until: Callable[[Observation], bool] | None = None, timeout: float | None = None) -> None:
        """Shows the state of the replication until `until` holds, or for ever. Raises `DemoFailed` after `timeout`
        seconds."""
        give_up_at = None if timeout is None else time.monotonic() + timeout
        while True:
            self.trade.check()
            look = self.onlooker.look()
            self.screen.show(look, self.trade.transactions)
            if until is not None and until(look):
                return
            if give_up_at is not None and time.monotonic() > give_up_at:
                raise DemoFailed(f"it takes longer than {timeout:.0f} s; {self._reports_of_airflow()}")
            if self.stop.wait(_LOOK_SECONDS):
                raise Interrupted

    def compare(self) -> None:
        """Pauses the shop, waits until the replica has caught up, compares, and runs the example query."""
        self.trade.pause()
        end = self.onlooker.look().wal_end
        self.watch(lambda look: look.has_reached(end), _CATCH_UP_SECONDS)
        self.screen.say("The shop is paused and the replica has caught up. Comparing, value by value.")
        different = self.destination.differences(self.source, TABLES)
        if different:
            raise DemoFailed("source and replica differ\n" + "\n".join(different))
        rows = sum(self.destination.count(table) or 0 for table in TABLES)
        self.screen.say(f"Equal: {len(TABLES)} tables, {rows:,} rows, every value.")
        answer = answer_as_text(self.destination.ask())
        self.screen.say(f"And what it is for, asked of the replica:\n\n{QUESTION}\n\n{answer}\n")
        self.trade.resume()

    def _reports_of_airflow(self) -> str:
        """Returns what Airflow reports about the failure."""
        rest, dag_id = self.airflow.rest, self.destination.dag_id
        said = rest.import_errors()
        for run_id, state in list(rest.runs(dag_id).items())[:1]:
            tasks = {task.task_id: task.state for task in rest.tasks(dag_id, run_id).values()}
            said.append(f"run {run_id} is {state}: {tasks}")
        return "\n".join(said) or "Airflow has no run of the DAG"


def demonstrate(screen: Screen, destination: str, *, once: bool, orders: int, stop: threading.Event) -> None:
    """Runs the whole demo. Raises `DemoFailed`, or `Interrupted`."""
    began = time.monotonic()
    with _running(screen, destination, orders, stop) as demo:
        url = demo.airflow.url
        screen.say(f"Airflow: {url}/dags/{demo.destination.dag_id}   (no password; Ctrl-C ends it all)")
        screen.say(f"Page:    {url}{PAGE}\nSource:  {demo.source.uri}\nReplica: {demo.destination.place}")
        _unpause(demo)
        demo.watch(lambda look: look.ready, _READY_SECONDS)
        screen.say(f"All tables are Ready, {time.monotonic() - began:.0f} s after the start.")
        demo.compare()
        if not once:
            screen.say("The shop trades on, and the replica follows. Clear tasks in Airflow and see; Ctrl-C ends it.")
            demo.watch()


@contextmanager
def _running(screen: Screen, destination_name: str, orders: int, stop: threading.Event) -> Iterator[Demo]:
    with ExitStack() as stack:
        screen.say("Starting PostgreSQL, twice, and filling a shop.")
        source = stack.enter_context(Server.start(_SOURCE_MAJOR)).create_database("shop")
        other = stack.enter_context(Server.start(_OTHER_MAJOR))
        destination = DESTINATIONS[destination_name](other, _folder(other, "lake"))
        with source.connect(autocommit=False) as session:
            create_shop(session, orders)
        trade = stack.enter_context(Trade(source.uri))
        screen.say("Starting Airflow: api-server, scheduler, dag-processor, triggerer. This takes half a minute.")
        airflow = stack.enter_context(_start_airflow(source, destination, other))
        onlooker = stack.enter_context(closing(_onlooker(source, destination)))
        stack.callback(screen.say, "Stopping everything.")
        yield Demo(screen, source, destination, trade, airflow, onlooker, stop)


def _start_airflow(source: Database, destination: DemoDestination, other: Server) -> Airflow:
    dags = _folder(other, "dags")
    shutil.copy(DAGS / f"{destination.dag_id}.py", dags)
    connections = {
        "shop_db": source.uri,
        "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        **destination.connections,
    }
    return Airflow.start(
        dags=dags,
        database=other.create_database("airflow").uri,
        connections=connections,
        settings=destination.settings,
    )


def _onlooker(source: Database, destination: DemoDestination) -> Onlooker:
    replication = declare(
        destination.dag_id,
        source_conn_id="shop_db",
        tables=[str(table) for table in TABLES],
        destination=destination.declaration,
    )
    environment = {**os.environ, SOURCE: source.uri, STATE: source.uri, **destination.environment}
    return Onlooker(replication, environment, source, destination)


def _unpause(demo: Demo) -> None:
    """Unpauses the DAG as soon as Airflow has read its file."""
    rest, dag_id = demo.airflow.rest, demo.destination.dag_id
    give_up_at = time.monotonic() + _CATCH_UP_SECONDS
    while not rest.has_dag(dag_id):
        if errors := rest.import_errors():
            raise DemoFailed("\n".join(errors))
        if time.monotonic() > give_up_at:
            raise DemoFailed(f"Airflow does not find the DAG {dag_id}")
        if demo.stop.wait(0.5):
            raise Interrupted
    rest.pause(dag_id, False)


def _folder(server: Server, name: str) -> Path:
    """Makes a folder in the server's home, which is removed with the server, however that ends."""
    folder = server.home / name
    folder.mkdir()
    return folder


# -- Runs the demo for ``pgetl demo``: its display, its signals, and its exit code. ------------------------------------

_INTERRUPTED = 130
_JAVA = 17


class _Stopping:
    """Handles Ctrl-C and SIGTERM, once: the shutdown must not be interrupted again."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if not self.event.is_set():
            self.event.set()
            raise Interrupted


def run_demo(destination: str, *, once: bool, orders: int) -> int:
    """Runs the demo until it is interrupted, or, with `once`, until source and replica have been found equal. Returns
    the exit code."""
    stopping = _Stopping()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopping)
    screen = open_screen()
    try:
        demonstrate(screen, destination, once=once, orders=orders, stop=stopping.event)
    except Interrupted:
        return 0 if not once else _INTERRUPTED
    except (DemoFailed, AirflowError, ServerError) as failed:
        screen.say(f"The demo failed: {failed}")
        return 1
    finally:
        screen.close()
    return 0


def java_trouble(environment: Mapping[str, str] = os.environ) -> str | None:
    """Returns why Spark, which is started minutes later, would find no Java that it can use; None if it would. Spark
    prefers JAVA_HOME to the path."""
    home = environment.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH"))
    where = f"JAVA_HOME is {home!r}" if home else f"java is {program or 'not on the path'}"
    if program is None or not Path(program).exists():
        return f"Spark needs Java {_JAVA} or later; {where}."
    said = subprocess.run([program, "-version"], check=False, capture_output=True, text=True).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < _JAVA:
        return f"Spark needs Java {_JAVA} or later; {where}, of version {found[1] if found else 'unknown'}."
    return None
