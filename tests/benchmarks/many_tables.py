"""What does coordination cost with many small tables?

    python -m tests.benchmarks.many_tables [--tables 300] [--rows 500] [--destination postgres|delta]

`pgetl run` in a process of its own, from nothing: the seconds until every table is Ready, until a change in each of
them is durable in the destination, the longest pause of the apply stream at a hand-over, the seconds of `pgetl
status`, and the largest memory of the worker. As others may use the machine, the CPU seconds of the worker, of its
Spark applications and of the two servers are told beside.

Wanted of 1,000 tables on 2 cores: Ready within 120 s, changes within 10 s, pauses below 2 s; of 5,000: 600 s and 40 s,
`status` within 2 s; always less than 400 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg

from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.testing.servers.postgres_servers import Server

_SOURCE, _DESTINATION = "PGETL_BENCH_SOURCE", "PGETL_BENCH_DESTINATION"
_SETTINGS = {"max_wal_size": "4GB", "shared_buffers": "256MB", "max_locks_per_transaction": "512", "fsync": "off"}
_PATIENCE = 1800.0
_AT_A_TIME = 200
_ORDER = ("Init", "DataSync", "FinishedCopy", "SyncWait", "Catchup", "SyncDone", "Ready")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.many_tables")
    parser.add_argument("--tables", type=int, default=300)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--destination", choices=("postgres", "delta"), default="postgres")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Server.start(16, settings=_SETTINGS) as source,
        Server.start(16, settings=_SETTINGS) as destination,
    ):
        for server in (source, destination):
            server.create_database("bench")
        os.environ[_SOURCE], os.environ[_DESTINATION] = source.uri("bench"), destination.uri("bench")
        _create(source.uri("bench"), given.tables, given.rows)
        file = _pipeline_file(Path(folder), given.destination)
        processes = [_postmaster(server) for server in (source, destination)]
        _measure(file, source.uri("bench"), given.tables, processes)


def _create(uri: str, tables: int, rows: int) -> None:
    """In transactions of some tables each: one of all would need a lock for each."""
    with psycopg.connect(uri, autocommit=True) as connection:
        for first in range(0, tables, _AT_A_TIME):
            statements = [
                f"create table t{n} (id int primary key, name text, amount numeric, at timestamptz default now());"
                f"insert into t{n} select i, 'row ' || i, i / 7.0 from generate_series(1, {rows}) i;"
                for n in range(first, min(tables, first + _AT_A_TIME))
            ]
            connection.execute("".join(statements).encode())


def _pipeline_file(folder: Path, destination: str) -> Path:
    where = f'uri = "{folder}/lake"' if destination == "delta" else f'uri = "env:{_DESTINATION}"'
    file = folder / "bench.toml"
    file.write_text(
        f'id = "bench"\ntables = ["public.*"]\n[source]\nuri = "env:{_SOURCE}"\n'
        f'[destination]\ntype = "{destination}"\n{where}\n'
    )
    return file


# -- the worker -------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """`pgetl run` under way, and what it has said."""

    process: subprocess.Popen[str]
    begun: float = field(default_factory=time.perf_counter)
    phases: dict[str, str] = field(default_factory=dict)
    durable: Boundary = START
    pause: float = 0.0
    memory: int = 0
    worker_cpu: float = 0.0
    copy_cpu: dict[int, float] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    def listen(self) -> None:
        assert self.process.stdout is not None, "the output is a pipe"
        for line in self.process.stdout:
            event: dict[str, Any] = json.loads(line)
            match event["event"]:
                case "phase_reached":
                    self.phases[event["table"]["name"]] = event["state"]["phase"]
                case "stream_progressed" if event["stream"] == "apply":
                    self.durable = Boundary.parse(event["durable"])
                    self.pause = max(self.pause, event["pause_seconds"])
                case "noted" | "error" | "errored":
                    self.said.append(line.rstrip())

    def watch(self) -> None:
        """Memory and CPU, of the worker and of what it starts."""
        worker = psutil.Process(self.process.pid)
        while self.process.poll() is None:
            try:
                self.memory = max(self.memory, worker.memory_info().rss)
                self.worker_cpu = _cpu(worker)
                for child in worker.children(recursive=True):
                    self.copy_cpu[child.pid] = _cpu(child)
            except psutil.NoSuchProcess:
                pass
            time.sleep(0.2)

    def until(self, phase: str, tables: int) -> float:
        """Seconds until so many tables have come to the phase, or beyond it."""
        deadline = time.perf_counter() + _PATIENCE
        beyond = _ORDER[_ORDER.index(phase) :]
        while (done := sum(reached in beyond for reached in list(self.phases.values()))) < tables:
            if self.process.poll() is not None or time.perf_counter() > deadline:
                sys.exit(f"{done} of {tables} tables came to {phase}:\n" + "\n".join(self.said[-20:]))
            time.sleep(0.05)
        return time.perf_counter() - self.begun

    @property
    def cpu(self) -> str:
        return f"worker {self.worker_cpu:.1f}, copies {sum(self.copy_cpu.values()):.1f}"


@contextmanager
def _running(file: Path) -> Iterator[Run]:
    command = [sys.executable, "-m", "airflow_provider_pgetl", "--log-format", "json", "run", file]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    run = Run(process)
    for work in (run.listen, run.watch):
        threading.Thread(target=work, daemon=True).start()
    try:
        yield run
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _postmaster(server: Server) -> psutil.Process:
    return psutil.Process(int((server.data / "postmaster.pid").read_text().split()[0]))


def _cpu_of_server(server: psutil.Process) -> float:
    """Sessions that have ended count with the server that waited for them."""
    times = server.cpu_times()
    spent = times.user + times.system + times.children_user + times.children_system
    for child in server.children():
        with suppress(psutil.NoSuchProcess):
            spent += _cpu(child)
    return spent


# -- measuring --------------------------------------------------------------------------------------------------------


def _measure(file: Path, source: str, tables: int, servers: list[psutil.Process]) -> None:
    before = [_cpu_of_server(server) for server in servers]
    with _running(file) as run:
        first = run.until("DataSync", 1)
        copied = run.until("FinishedCopy", tables)
        ready = run.until("Ready", tables)
        spent = [_cpu_of_server(server) - was for server, was in zip(servers, before, strict=True)]
        print(f"{tables} tables: prepared after {first:.1f} s, copied after {copied:.1f} s, Ready after {ready:.1f} s")
        print(f"    CPU seconds: {run.cpu}, source {spent[0]:.1f}, destination {spent[1]:.1f}")
        print(f"    longest pause of the apply stream {run.pause:.2f} s, memory {run.memory / 1e6:.0f} MB", flush=True)
        before_changes = run.worker_cpu
        took = _change_each(source, tables, run)
        print(f"    a change in each table: {took:.1f} s, CPU of the worker {run.worker_cpu - before_changes:.1f}")
        idle = run.worker_cpu
        time.sleep(10)
        print(f"    CPU of the idle worker in 10 s: {run.worker_cpu - idle:.2f}")
        begun = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "airflow_provider_pgetl", "status", str(file), "--json"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        print(f"    status: {time.perf_counter() - begun:.2f} s; memory {run.memory / 1e6:.0f} MB", flush=True)


def _change_each(uri: str, tables: int, run: Run) -> float:
    """One transaction for each table."""
    begun = time.perf_counter()
    with psycopg.connect(uri, autocommit=True) as connection:
        connection.execute(
            f"do $$ begin for n in 0..{tables - 1} loop"
            " execute format('update t%s set amount = amount + 1 where id = 1', n); commit; end loop; end $$".encode()
        )
        row = connection.execute("select pg_current_wal_flush_lsn()::text").fetchone()
    assert row is not None, "every server has a position"
    wanted = Boundary.parse(row[0])
    while run.durable < wanted:
        if time.perf_counter() - begun > _PATIENCE or run.process.poll() is not None:
            sys.exit(f"The changes did not arrive: {run.durable} of {wanted}.\n" + "\n".join(run.said[-20:]))
        time.sleep(0.05)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
