"""`pgetl run`, or `pgetl merge`, as a real process, that can be killed with all its children, and started again."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

import psutil
import psycopg

from airflow_provider_pgetl.engine.model.phases import PhaseName
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.chaos.forked import Forked
from tests.waiting import until

KILLED = -9

Program = Literal["airflow_provider_pgetl", "tests.chaos.without_spark"]
WITH_SPARK: Program = "airflow_provider_pgetl"
WITHOUT_SPARK: Program = "tests.chaos.without_spark"
_ROOT = Path(__file__).parents[2]


class Run:
    """One process of `pgetl`, in a session of its own; its words are in `log`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self.peak_memory = 0
        with log.open("ab") as words:
            words.write(f"\n---- {time.strftime('%X')} {' '.join(command)}\n".encode())
            words.flush()
            self.process = _begun(command, environment, words)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def wait(self, timeout: float) -> int:
        """The exit code. Too late is a failure that shows the end of the log; the process is then ended."""
        try:
            self._wait(time.monotonic() + timeout)
            return self.process.returncode
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the run did not end within {timeout} s\n{self.said()}") from None

    def _wait(self, deadline: float) -> None:
        """Looking at its memory, which cannot be asked for any more when it has ended."""
        while self.process.poll() is None:
            self.peak_memory = max(self.peak_memory, self._peak())
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.process.args, 0)
            time.sleep(0.02)

    def until(self, condition: Callable[[], object], what: str, timeout: float = 180.0) -> None:
        """That it ends before is a failure."""

        def check() -> None:
            assert self.running, f"it ended before {what}\n{self.said()}"

        until(condition, what, timeout, check=check, told=self.said)

    def _peak(self) -> int:
        """The most that was resident so far, of the process itself; in bytes."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return 0
        found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(found[0]) * 1024 if found else 0

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        """Everything at once, as when the machine is switched off: also what made itself a session of its own."""
        family = self.family()
        self.process.kill()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()
        psutil.wait_procs(family, timeout=60)

    def family(self) -> list[psutil.Process]:
        try:
            children: list[psutil.Process] = psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return children

    def said(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def _begun(command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes] | Forked:
    program, *arguments = command
    if program == WITHOUT_SPARK:
        return Forked(arguments, environment, Path(log.name))
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        cwd=_ROOT,
        start_new_session=True,
    )


@dataclass
class Runs:
    """Runs of one pipeline file, one after the other. `state` defaults to the source."""

    databases: Databases
    folder: Path
    text: str
    state: Database | None = None
    program: Program = WITHOUT_SPARK
    started: list[Run] = field(default_factory=list)

    def start(self, *arguments: str, **environment: str) -> Run:
        return self._begin("run", *arguments, **environment)

    def merge(self, **environment: str) -> Run:
        return self._begin("merge", **environment)

    def _begin(self, verb: str, *arguments: str, **environment: str) -> Run:
        file = self.folder / "pipeline.toml"
        file.write_text(self.text)
        command = [self.program, verb, str(file), "--verbose"]
        run = Run([*command, *arguments], {**self._environment, **environment}, self.folder / "log")
        self.started.append(run)
        return run

    def until_caught_up(self, timeout: float = 180.0, **environment: str) -> int:
        return self.start("--until", "caught-up", **environment).wait(timeout)

    def close(self) -> None:
        for run in self.started:
            if run.running:
                run.kill()

    @property
    def log(self) -> str:
        return self.started[-1].said() if self.started else ""

    @property
    def _state(self) -> Database:
        return self.state or self.databases.source

    @property
    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PGETL_SOURCE_URI": self.databases.source.uri,
            "PGETL_DESTINATION_URI": self.databases.destination.uri,
            "PGETL_STATE_URI": self._state.uri,
        }

    # -- what is left in the servers ----------------------------------------------------------------------------------

    def phases(self) -> dict[str, PhaseName]:
        statement = """select t.table_schema || '.' || t.table_name, h.phase ->> 'phase'
                       from pgetl.tables t join pgetl.history h using (pipeline, table_schema, table_name)
                       where h.entry = t.current"""
        try:
            return dict(self._state.execute(statement))
        except psycopg.errors.UndefinedTable:
            return {}

    @property
    def all_ready(self) -> bool:
        return set(self.phases().values()) == {"Ready"}

    def slots(self) -> list[str]:
        statement = "select slot_name::text from pg_replication_slots where database = %s order by 1"
        return [name for (name,) in self.databases.source.execute(statement, [self.databases.source.name])]

    def staged(self) -> list[str]:
        """What copies have staged in the destination."""
        statement = """select relname::text from pg_class
                       where relnamespace = to_regnamespace('pgetl_staging') and relkind = 'r'"""
        return [name for (name,) in self.databases.destination.execute(statement)]

    def assert_settled(self) -> None:
        """Every table is Ready; of slots and staging nothing is left that no phase needs."""
        phases = self.phases()
        assert set(phases.values()) == {"Ready"}, f"{phases}\n{self.log}"
        slots = self.slots()
        assert len(slots) == 1, slots
        assert slots[0].endswith("_apply"), slots
        assert self.staged() == []
