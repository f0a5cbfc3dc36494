"""What a replication costs Airflow itself: how many processes, or pods, it starts for a run, for how long a run lasts,
and how much of a processor the scheduler and the api-server use for it; with ``tasks="full"`` and ``"compact"``.

    python -m tests.benchmarks.airflow_runs --tables 200

Tables are small, so what is measured is not the copying. The second run finds every table Ready; with ``--ready`` that
is the only run, and the engine alone has brought the tables there.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.processes.many import DAG, ManyTables, many_tables

_START = re.compile(r"PATCH \S*/execution/task-instances/[0-9a-f-]+/run\b")
_PATIENCE_SECONDS = 3600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--tasks", choices=("full", "compact"), action="append")
    parser.add_argument("--ready", action="store_true", help="only the run that finds all tables Ready")
    chosen = parser.parse_args()
    for shape in chosen.tasks or ("full", "compact"):
        with tempfile.TemporaryDirectory() as folder:
            _measure(Path(folder), shape, chosen.tables, chosen.ready)


def _measure(folder: Path, shape: str, tables: int, only_ready: bool) -> None:
    edits = (
        ("range(1, 21)", f"range(1, {tables + 1})"),
        ("rotate_after=timedelta(seconds=3600),", f'until="caught_up", tasks="{shape}",'),
    )
    with many_tables(folder, tables, *edits) as world:
        if only_ready:
            world.bring_on(tables)
        world.rest.pause(DAG, False)
        for what in ("copies all", "finds all Ready")[only_ready:]:
            began, started, used = time.monotonic(), _starts(world), _processor_seconds(world)
            run = world.rest.trigger(DAG)
            state = _await_end(world, run)
            print(
                f"{tables} tables, {shape}: a run that {what}: {state} after {time.monotonic() - began:.1f} s, "
                f"{_starts(world) - started} task starts, {_processor_seconds(world) - used:.1f} s of processor "
                f"(load {os.getloadavg()[0]:.1f})",
                flush=True,
            )
            if state != "success":
                sys.exit(1)


def _await_end(world: ManyTables, run: str) -> str:
    def ended() -> bool:
        return world.rest.runs(DAG)[run] in ("success", "failed")

    world.wait(ended, "the run ends", _PATIENCE_SECONDS)
    return world.rest.runs(DAG)[run]


def _starts(world: ManyTables) -> int:
    """Each process of a task tells the api-server that it runs, also one that resumes a deferred task."""
    return len(_START.findall(world.airflow.log_file("api-server").read_text(errors="replace")))


def _processor_seconds(world: ManyTables) -> float:
    """Of the scheduler and the api-server, without the tasks that the scheduler's executor runs."""
    total = 0.0
    for process in world.airflow.members():
        try:
            words = " ".join(process.cmdline())
            if "scheduler" in words or "api-server" in words or "api_server" in words:
                times = process.cpu_times()
                total += times.user + times.system
        except psutil.Error:
            continue
    return total


if __name__ == "__main__":
    main()
