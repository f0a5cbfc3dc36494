"""The whole way: spark-submit, the application, executors, two servers, a store in Postgres; and what kills it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest

from airflow_provider_pgetl.engine.config.jobs import CopyJob, CopyTable
from airflow_provider_pgetl.engine.config.spec import (
    CopySpec,
    DestinationSpec,
    PipelineSpec,
    SourceSpec,
    SparkSpec,
    TableSpec,
    TransformationSpec,
    TransformSpec,
)
from airflow_provider_pgetl.engine.model.phases import PhaseName, phase_name
from airflow_provider_pgetl.engine.model.reports import CopyProgressed, Report
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.spark.submission import COPY, CopyProcess, submit
from airflow_provider_pgetl.engine.state.store import Store, open_store
from airflow_provider_pgetl.testing.servers.postgres_servers import PASSWORD, Database, Databases, Server
from tests.engine.copy.copies import DESTINATION, SOURCE, public
from tests.engine.transform import reference
from tests.waiting import until

STATE, KEY = "PGETL_TEST_STATE", "PGETL_TEST_KEY"
BIG, PART, ODD = public("big"), public("part"), TableName("public", 'Odd "Name"')
PATIENCE = 90.0

pytestmark = [
    pytest.mark.spark,
    pytest.mark.servers,
    pytest.mark.parametrize("source_server", [16], indirect=True, ids=["pg16"]),
    pytest.mark.parametrize("destination_server", [18], indirect=True, ids=["to pg18"]),
]


@dataclass
class Application:
    """Three tables, and copies of them by Spark."""

    source: Database
    destination: Database
    store: Store
    spark: SparkSpec = SparkSpec(master="local[2]")
    reports: list[Report] = field(default_factory=list)
    rules: tuple[TransformSpec, ...] = ()

    @property
    def job(self) -> CopyJob:
        spec = PipelineSpec(
            id="shop",
            tables=(TableSpec("*.*"),),
            source=SourceSpec(f"env:{SOURCE}", publication="p", manage_publication=False),
            destination=DestinationSpec("postgres", uri=f"env:{DESTINATION}"),
            state_uri=f"env:{STATE}",
            spark=self.spark,
            copy=CopySpec(range_bytes=1 << 20),
            transform=self.rules,
            transformation=TransformationSpec(key=f"env:{KEY}"),
        )
        return CopyJob(spec, tuple(CopyTable(table, table) for table in (BIG, PART, ODD)))

    def submit(self, observer: Callable[[Report], None] = lambda _: None) -> CopyProcess:
        def observe(report: Report) -> None:
            self.reports.append(report)
            observer(report)

        return submit(COPY, self.job, observe)

    def phases(self) -> set[PhaseName]:
        self.store.load()
        return {phase_name(record.state.phase) for record in self.store.tables().values()}

    def slots(self) -> set[str]:
        return {name for (name,) in self.source.execute("select slot_name::text from pg_replication_slots")}

    def assert_equal(self) -> None:
        for table in (BIG, PART, ODD):
            query = f"select count(*), sum(hashtextextended(t::text, 0)) from {table.sql} t"
            assert self.destination.execute(query) == self.source.execute(query), table


@pytest.fixture
def application(databases: Databases, server18: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Application]:
    source = databases.source
    source.execute("create table big (id int primary key, note text)")
    source.execute("insert into big select g, repeat(md5(g::text), 10) from generate_series(1, 60000) g")
    source.execute("create table part (id int primary key) partition by hash (id)")
    for rest in range(2):
        source.execute(f"create table part_{rest} partition of part for values with (modulus 2, remainder {rest})")
    source.execute("insert into part select generate_series(1, 1000)")
    source.execute(f'create table {ODD.sql} ("sélect" text)')
    source.execute(f"insert into {ODD.sql} values ('ü'), (null), (null)")
    source.execute("create publication p for all tables with (publish_via_partition_root = true)")
    state = server18.create_database(f"state_of_{source.name}")
    for name, database in ((SOURCE, source), (DESTINATION, databases.destination), (STATE, state)):
        monkeypatch.setenv(name, database.uri)
    store = open_store(state.uri, "shop")
    for table in (BIG, PART, ODD):
        store.register(table, source.execute("select %s::regclass::oid::int8", [table.sql])[0][0], None)
    yield Application(source, databases.destination, store)
    store.close()
    server18.drop_database(state.name)


def command_lines_below(pid: int) -> Iterator[list[str]]:
    leader = psutil.Process(pid)
    for process in (leader, *leader.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            yield process.cmdline()


def test_three_tables_by_spark_submit(application: Application) -> None:
    began = threading.Event()
    running = application.submit(lambda _: began.set())
    assert began.wait(PATIENCE)
    command_lines = str(list(command_lines_below(running.pid)))
    result = running.wait(PATIENCE)

    assert result is not None
    assert (result.failure, result.failed) == (None, {})
    assert set(result.published) == {BIG, PART, ODD}
    assert application.phases() == {"FinishedCopy"}
    assert application.slots() == {result.slot}
    application.assert_equal()
    done = [report for report in application.reports if isinstance(report, CopyProgressed) and report.table == BIG]
    assert len(done) > 10
    assert done[-1].rows == 60000
    assert "copy_table.py" in command_lines
    assert quote(PASSWORD) not in command_lines


@pytest.mark.slow
def test_executors_elsewhere_need_nothing_of_this_environment(application: Application) -> None:
    """Executors of their own, to whom the references mean nothing: the driver has to tell them."""
    blank = " ".join(f"--conf spark.executorEnv.{name}=" for name in (SOURCE, DESTINATION, STATE))
    application.spark = SparkSpec(
        "local-cluster[2,1,1024]", f"--executor-memory 512m --conf spark.driver.host=127.0.0.1 {blank}"
    )

    result = application.submit().wait(PATIENCE)

    assert result is not None
    assert (result.failure, result.failed) == (None, {})
    application.assert_equal()


@pytest.mark.parametrize("master", ["local[2]", pytest.param("local-cluster[2,1,1024]", marks=pytest.mark.slow)])
def test_executors_transform_values_and_tell_nobody(
    application: Application, master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors of their own get the key from the driver; Spark's own log of what it does has neither it nor values."""
    monkeypatch.setenv(KEY, reference.SECRET)
    names = () if master == "local[2]" else (SOURCE, DESTINATION, STATE, KEY)
    application.rules = (TransformSpec("note", "hash", "public.big"), TransformSpec("sélect", "mask"))
    application.source.execute("update big set note = 'canary ' || id")
    blank = " ".join(f"--conf spark.executorEnv.{name}=" for name in names)
    logged = (
        f"--conf spark.eventLog.enabled=true --conf spark.eventLog.dir={tmp_path} --conf spark.eventLog.compress=false"
    )
    application.spark = SparkSpec(master, f"--executor-memory 512m --conf spark.driver.host=127.0.0.1 {blank} {logged}")

    result = application.submit().wait(PATIENCE)

    assert result is not None
    assert (result.failure, result.failed) == (None, {})
    notes = dict(application.destination.execute("select id, note from big where id % 1000 = 0"))
    assert notes == {number: reference.hashed(f"canary {number}") for number in range(1000, 60001, 1000)}
    assert application.destination.execute(f"select count(*) from {ODD.sql} where \"sélect\" = '*'") == [(1,)]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert len(written) > 10_000
    for secret in ("canary", reference.SECRET, PASSWORD):
        assert secret.encode() not in written


@pytest.mark.slow
def test_killed_in_the_middle_the_next_attempt_copies_all(application: Application) -> None:
    """The first leaves its slot and its staging; the second knows neither, and takes the staging away."""
    begun = threading.Event()
    first = application.submit(lambda report: isinstance(report, CopyProgressed) and report.rows and begun.set())
    assert begun.wait(PATIENCE)
    first.kill()
    died = first.wait()
    assert died is not None
    assert died.failure is not None
    assert "killed by signal 9" in died.failure.message
    assert "DataSync" in application.phases()
    for attempt in application.store.live_attempts():
        application.store.end_attempt(attempt)  # as the pool of copies does when the process is gone

    second = application.submit().wait(PATIENCE)

    assert second is not None
    assert second.failure is None
    assert application.phases() == {"FinishedCopy"}
    application.assert_equal()
    staged = "select count(*) from pg_class where relnamespace = to_regnamespace('pgetl_staging') and relkind = 'r'"
    assert application.destination.execute(staged) == [(0,)]
    assert second.slot in application.slots()


def test_when_whoever_submitted_it_dies_it_ends_and_leaves_nothing(application: Application, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PGETL_PARCELS": str(tmp_path)},
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    parent.stdin.write(json.dumps(application.job.as_json()))
    parent.stdin.close()
    spark = psutil.Process(int(parent.stdout.readline()))
    until(lambda: any(slot.endswith("_c1") for slot in application.slots()), "the copy has begun")
    family = [spark, *spark.children(recursive=True)]

    parent.send_signal(signal.SIGKILL)
    parent.wait()

    _, alive = psutil.wait_procs(family, timeout=60)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    until(lambda: not application.slots(), "the slot is gone")
    assert application.store.live_attempts() == frozenset()
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_when_java_dies_the_driver_ends_and_leaves_no_slot(application: Application) -> None:
    begun = threading.Event()
    running = application.submit(lambda report: isinstance(report, CopyProgressed) and report.rows and begun.set())
    assert begun.wait(PATIENCE)
    family = psutil.Process(running.pid).children(recursive=True)
    psutil.Process(running.pid).kill()

    result = running.wait(PATIENCE)

    assert result is not None
    _, alive = psutil.wait_procs(family, timeout=60)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
    until(lambda: not application.slots(), "the slot is gone")


@pytest.mark.slow
def test_asked_to_stop_it_stops_in_time_and_leaves_nothing(application: Application) -> None:
    begun = threading.Event()
    running = application.submit(lambda report: isinstance(report, CopyProgressed) and report.rows and begun.set())
    assert begun.wait(PATIENCE)
    asked = time.monotonic()

    result = running.stop()

    assert time.monotonic() - asked < 10
    assert result.failure is None
    if BIG not in result.published:
        assert "asked to stop" in result.left_out[BIG]
    assert application.slots() == ({result.slot} if result.slot else set())


PARENT = textwrap.dedent("""
    import json, os, sys, tempfile
    from airflow_provider_pgetl.engine.config.jobs import CopyJob
    from airflow_provider_pgetl.engine.spark.submission import COPY
    from airflow_provider_pgetl.engine.spark.submission import submit
    tempfile.tempdir = os.environ["PGETL_PARCELS"]
    running = submit(COPY, CopyJob.from_json(json.loads(sys.stdin.read())))
    print(running.pid, flush=True)
    running.wait()
""")
