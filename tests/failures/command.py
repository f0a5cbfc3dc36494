"""One command as a process of its own, forked from one in which everything is imported already: these tests give many
commands, and most of a short one's time goes into importing. Copies run in threads of the process, without Spark."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from airflow_provider_pgetl.cli.app import app
from airflow_provider_pgetl.engine.pipeline import Pipeline
from airflow_provider_pgetl.engine.prepare import source_watch
from tests.chaos.without_spark import LocalPipeline

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        __name__,
        "airflow_provider_pgetl.engine.destinations.postgres",
        "airflow_provider_pgetl.engine.state.postgres_store",
    ]
)


def begin(arguments: Sequence[str], environment: Mapping[str, str], out: Path, err: Path) -> ForkServerProcess:
    process = _context.Process(target=_carry_out, args=(list(arguments), dict(environment), out, err))
    process.start()
    return process


def _carry_out(arguments: list[str], environment: dict[str, str], out: Path, err: Path) -> None:
    os.setsid()
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    sys.stdout.reconfigure(errors="strict")  # type: ignore[union-attr]  # written to a file from here on
    os.environ.update(environment)
    sys.argv = ["pgetl", *arguments]
    source_watch.WATCH_SECONDS = float(environment.get("TEST_WATCH_SECONDS", source_watch.WATCH_SECONDS))
    ahead, clock = float(environment.get("TEST_CLOCK_AHEAD", 0)), time.time
    time.time = lambda: clock() + ahead  # another machine's
    Pipeline._launch = LocalPipeline._launch  # type: ignore[method-assign, assignment]  # the one seam there is
    app(prog_name="pgetl")
