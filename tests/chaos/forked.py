"""A run as a process of its own, forked from one in which everything is imported already: that takes two seconds of a
processor otherwise, and these tests start many. As `python -m tests.chaos.without_spark` in every other respect."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow_provider_pgetl.cli.app import app
from airflow_provider_pgetl.engine.runtime import processes
from tests.chaos.without_spark import run_here

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        __name__,
        "airflow_provider_pgetl.engine.destinations.postgres",
        "airflow_provider_pgetl.engine.state.postgres_store",
    ]
)


class Forked:
    """As `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.args = list(arguments)
        self._process = _context.Process(target=_carry_out, args=(self.args, dict(environment), log))
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

    def wait(self) -> None:
        self._process.join()


def _carry_out(arguments: list[str], environment: dict[str, str], log: Path) -> None:
    os.setsid()
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(written, descriptor)
    os.environ.clear()
    os.environ.update(environment)
    importlib.reload(processes)  # it reads the environment when it is imported
    sys.argv = ["pgetl", *arguments]
    run_here()
    app(prog_name="pgetl")
