"""Commands of pgetl as processes, that can be stopped, and killed with all their children.

`Forked` is forked from a process in which everything is imported already: tests give many commands, and most of a short
one's time goes into importing. It is as `python -m tests.without_spark` in every other respect: copies and merges run
in threads of the process.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from airflow_provider_pgetl.cli.app import app
from airflow_provider_pgetl.engine.prepare import source_watch
from airflow_provider_pgetl.engine.runtime import processes as failpoints
from tests.waiting import until
from tests.without_spark import run_here

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        __name__,
        "airflow_provider_pgetl.engine.destinations.postgres",
        "airflow_provider_pgetl.engine.state.postgres_store",
    ]
)


class Forked:
    """As `subprocess.Popen`; standard output and standard error are appended to files."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], out: Path, err: Path) -> None:
        self.args = list(arguments)
        self._process = _context.Process(target=_carry_out, args=(self.args, dict(environment), out, err))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self._process.exitcode


class Command:
    """A process of pgetl, in a session of its own, and what it has written so far."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked, out: Path, err: Path) -> None:
        self.process = process
        self.out, self.err = out, err

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def written(self) -> str:
        return "".join(file.read_text(errors="replace") for file in dict.fromkeys((self.out, self.err)))

    def until(self, condition: Callable[[], object], what: str, timeout: float = 180.0) -> None:
        """Waits for something that comes of it; that it ends before is a failure."""

        def check() -> None:
            assert self.running, f"it ended before {what}\n{self.written[-8000:]}"

        until(condition, what, timeout, check=check, told=lambda: self.written[-8000:])

    def until_said(self, words: str, timeout: float = 120.0) -> None:
        self.until(lambda: words in self.written, f"it said {words!r}", timeout)

    @contextlib.contextmanager
    def stands_still(self) -> Iterator[None]:
        """So that it looks, and connects again, only when everything has been done."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def terminate(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        """Everything at once, as when the machine is switched off: also what made itself a session of its own."""
        family = self.family() if self.running else []
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


def _carry_out(arguments: list[str], environment: dict[str, str], out: Path, err: Path) -> None:
    os.setsid()
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.stdout.reconfigure(errors="strict")  # type: ignore[union-attr]  # written to a file from here on
    os.environ.clear()
    os.environ.update(environment)
    importlib.reload(failpoints)  # it reads the environment when it is imported
    sys.argv = ["pgetl", *arguments]
    for name in ("WATCH_SECONDS", "WATCH_AGAIN_SECONDS"):
        setattr(source_watch, name, float(environment.get(f"TEST_{name}", getattr(source_watch, name))))
    ahead, clock = float(environment.get("TEST_CLOCK_AHEAD", 0)), time.time
    time.time = lambda: clock() + ahead  # another machine's
    run_here()
    app(prog_name="pgetl")
