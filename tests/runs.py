"""`pgetl run`, or `pgetl merge`, as a real process, that can be killed with all its children, and started again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.commands import Command, Forked
from tests.replicated import Replicated

KILLED = -9

Program = Literal["airflow_provider_pgetl", "tests.without_spark"]
WITH_SPARK: Program = "airflow_provider_pgetl"
WITHOUT_SPARK: Program = "tests.without_spark"
_ROOT = Path(__file__).parents[1]


class Run(Command):
    """One process of `pgetl`; its words are appended to a log."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self.peak_memory = 0
        with log.open("ab") as words:
            words.write(f"\n---- {time.strftime('%X')} {' '.join(command)}\n".encode())
            words.flush()
            super().__init__(_begun(command, environment, words), log, log)

    def wait(self, timeout: float) -> int:
        """The exit code. Too late is a failure that shows the end of the log; the process is then ended. Meanwhile its
        memory is looked at, which cannot be asked for any more when it has ended."""
        deadline = time.monotonic() + timeout
        while (code := self.process.poll()) is None:
            self.peak_memory = max(self.peak_memory, self._peak())
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the run did not end within {timeout} s\n{self.said()}")
            time.sleep(0.02)
        return code

    def _peak(self) -> int:
        """The most that was resident so far, of the process itself; in bytes."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return 0
        found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(found[0]) * 1024 if found else 0

    def said(self, lines: int = 60) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def _begun(command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes] | Forked:
    program, *arguments = command
    if program == WITHOUT_SPARK:
        return Forked(arguments, environment, Path(log.name), Path(log.name))
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
class Runs(Replicated):
    """Runs of one pipeline file, one after the other. `state` defaults to the source."""

    databases: Databases
    folder: Path
    text: str
    state: Database = None  # type: ignore[assignment]  # set below
    program: Program = WITHOUT_SPARK
    started: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = self.state or self.databases.source

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
    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PGETL_SOURCE_URI": self.databases.source.uri,
            "PGETL_DESTINATION_URI": self.databases.destination.uri,
            "PGETL_STATE_URI": self.state.uri,
        }

    def assert_settled(self) -> None:
        """Every table is Ready; of slots and staging nothing is left that no phase needs."""
        phases = self.phases()
        assert set(phases.values()) == {"Ready"}, f"{phases}\n{self.log}"
        slots = self.slots()
        assert len(slots) == 1, slots
        assert slots[0].endswith("_apply"), slots
        assert self.staged() == []
