"""Twenty tables: what a Clear and a rotation cost, for how long nothing streams, and a table added meanwhile."""

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_pgetl.servers.airflow_processes import Airflow
from airflow_provider_pgetl.servers.airflow_rest import AirflowRest
from tests.postgres_servers import Database, Server
from tests.processes.replica import STEPS

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.timeout(2400)]

DAG = "twenty"
FOLLOWED, BEHIND = "many__t01.ready", "behind"
SLOT = "select active from pg_replication_slots where slot_name ~ '^pgetl_twenty_[a-z0-9]{6}_apply$'"


@dataclass
class Twenty:
    """An Airflow with this DAG alone, so that what is measured is this DAG's."""

    source: Database
    airflow: Airflow
    file: Path

    @property
    def rest(self) -> AirflowRest:
        return self.airflow.rest

    def edit(self, before: str, after: str) -> None:
        text = self.file.read_text()
        assert before in text
        self.file.write_text(text.replace(before, after))

    def states(self, run: str) -> dict[str, str | None]:
        return {name: task.state for name, task in self.rest.tasks(DAG, run).items()}

    def succeeded(self, run: str) -> set[str]:
        return {name for name, state in self.states(run).items() if state == "success"}

    def wait(self, condition: Callable[[], bool], what: str, timeout: float = 900.0) -> None:
        give_up_at = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < give_up_at, f"not within {timeout:.0f} s: {what}"
            time.sleep(0.5)

    def wait_until_settled(self, run: str, tables: int) -> None:
        """All tables Ready, all their tasks done or passed over, and the stream under way."""
        self.wait(lambda: self._is_settled(run, tables), f"{tables} tables are settled")

    def _is_settled(self, run: str, tables: int) -> bool:
        states = self.states(run)
        if states.pop("apply") != "deferred" or self.source.execute(SLOT) != [(True,)]:
            return False
        query = """
        select count(*) from pgetl.tables t
        join pgetl.history h on (h.pipeline, h.table_schema, h.table_name, h.entry)
                              = (t.pipeline, t.table_schema, t.table_name, t.current)
        where h.phase->>'phase' = 'Ready'
        """
        return set(states.values()) <= {"success", "skipped"} and self.source.execute(query) == [(tables,)]


@pytest.fixture
def twenty(tmp_path: Path) -> Iterator[Twenty]:
    file = tmp_path / "twenty.py"
    shutil.copy(Path(__file__).with_name("twenty.py"), file)
    with ExitStack() as stack:
        source = stack.enter_context(Server.start(18)).create_database("shop")
        other = stack.enter_context(Server.start(16))
        source.execute("create schema many")
        for number in range(1, 22):
            table = f"many.t{number:02}"
            source.execute(f"create table {table} as select id, 'x' as note from generate_series(1, 50) id")
            source.execute(f"alter table {table} add primary key (id)")
        connections = {
            "shop_db": source.uri,
            "replica_db": other.create_database("replica").uri,
            "spark_default": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        }
        database = other.create_database("airflow").uri
        airflow = stack.enter_context(Airflow.start(dags=tmp_path, database=database, connections=connections))
        found = Twenty(source, airflow, file)
        found.wait(lambda: found.rest.has_dag(DAG) or bool(found.rest.import_errors()), "the DAG is found")
        assert found.rest.import_errors() == []
        yield found


class Gaps:
    """For how long the slot of the stream was not in use, each time, in seconds."""

    def __init__(self, source: Database) -> None:
        self.found: list[float] = []
        self._source = source
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        since: float | None = None
        while not self._over.wait(0.05):
            streams = self._source.execute(SLOT) == [(True,)]
            if streams and since is not None:
                self.found.append(round(time.monotonic() - since, 2))
            since = None if streams else since or time.monotonic()

    def close(self) -> None:
        time.sleep(1.0)  # the end of the last gap is seen as well
        self._over.set()
        self._thread.join(30)


def test_twenty_tables(twenty: Twenty) -> None:
    """The figures are printed: `pytest -rP` shows them."""
    began = time.monotonic()
    twenty.rest.pause(DAG, False)
    twenty.wait(lambda: bool(twenty.rest.runs(DAG)), "it runs")
    run = next(iter(twenty.rest.runs(DAG)))
    twenty.wait_until_settled(run, 20)
    print("seconds_until_settled", round(time.monotonic() - began, 1))
    assert twenty.states(run)[BEHIND] == "success"

    # A table is added to the file: the run that is under way takes it up, and no task of it fails.
    twenty.edit("range(1, 21)", "range(1, 22)")
    twenty.wait(lambda: "many__t21.ready" in twenty.states(run), "the run has its tasks")
    twenty.wait_until_settled(run, 21)
    assert twenty.rest.tasks(DAG, run)["many__t21.init"].try_number == 1

    # A Clear of `prepare`, which takes everything along: the stream does not wait for a hundred tasks.
    gaps = Gaps(twenty.source)
    again = twenty.rest.tasks(DAG, run)["prepare"].try_number + 1
    applied = twenty.rest.tasks(DAG, run)["apply"].try_number
    assert len(twenty.rest.clear(DAG, run, "prepare")) == 2 + 21 * len(STEPS) + 1
    twenty.wait(lambda: twenty.rest.tasks(DAG, run)["prepare"].try_number == again, "it is prepared again")
    twenty.wait_until_settled(run, 21)
    gaps.close()
    print("gap_of_a_cleared_prepare", gaps.found)
    assert twenty.rest.tasks(DAG, run)["apply"].try_number == applied + 1
    assert max(gaps.found, default=0.0) < 90, "none where the new worker waits for the old one to end"
    assert twenty.succeeded(run) == {"prepare", FOLLOWED, BEHIND}, "others are passed over, what is followed is not"

    # Rotation: two tasks, and the one that is followed.
    twenty.edit("seconds=3600", "seconds=20")
    time.sleep(15)
    gaps = Gaps(twenty.source)
    twenty.rest.clear(DAG, run, "apply")
    twenty.wait(lambda: len(twenty.rest.runs(DAG)) >= 4, "runs follow each other")
    gaps.close()
    twenty.rest.pause(DAG)
    print("gaps_of_rotations", gaps.found)
    later = [each for each, state in twenty.rest.runs(DAG).items() if state == "success" and each != run]
    assert later
    for each in later:
        assert twenty.succeeded(each) == {"prepare", "apply", FOLLOWED, BEHIND}
    assert max(gaps.found[1:], default=0.0) < 90, "the first is that of the Clear"
