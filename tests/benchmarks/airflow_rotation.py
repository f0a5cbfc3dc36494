"""How long after a DAG is unpaused its tables are all Ready and its grid is green, and for how long nobody streams when
a run gives way to the next.

    python -m tests.benchmarks.airflow_rotation --tables 100

Tables are small, so what is measured is not the copying. With ``--ready`` only rotations are measured, and the engine
alone has brought the tables there. The load of the machine stands beside each figure.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from tests.processes.gaps import Gaps
from tests.processes.many import DAG, ManyTables, many_tables

_ROTATIONS = 4
_PATIENCE_SECONDS = 3600.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--tasks", choices=("full", "compact"), default="full")
    parser.add_argument("--ready", action="store_true", help="rotations alone")
    chosen = parser.parse_args()
    edits = (
        ("range(1, 21)", f"range(1, {chosen.tables + 1})"),
        ("rotate_after=", f'tasks="{chosen.tasks}", rotate_after='),
    )
    with tempfile.TemporaryDirectory() as folder, many_tables(Path(folder), chosen.tables, *edits) as world:
        if chosen.ready:
            world.bring_on(chosen.tables)
        _measure(world, chosen.tables, chosen.tasks)


def _measure(world: ManyTables, tables: int, tasks: str) -> None:
    def say(what: str) -> None:
        print(f"{tables} tables, {tasks}: {what} (load {os.getloadavg()[0]:.1f})", flush=True)

    began = time.monotonic()
    world.rest.pause(DAG, False)
    world.wait(lambda: bool(world.rest.runs(DAG)), "it runs")
    first = next(iter(world.rest.runs(DAG)))
    world.wait(lambda: world.ready() == tables, "all tables are Ready", _PATIENCE_SECONDS)
    say(f"all Ready after {time.monotonic() - began:.1f} s")
    world.wait_until_settled(first, tables, _PATIENCE_SECONDS)
    say(f"the grid is green after {time.monotonic() - began:.1f} s")
    world.edit("seconds=3600", "seconds=20")
    time.sleep(15)
    with Gaps(world.source, DAG, "of a cleared apply, and of rotations") as gaps:
        world.rest.clear(DAG, first, "apply")
        world.wait(
            lambda: len(world.rest.runs(DAG)) > _ROTATIONS + 1, "runs follow each other", timeout=_PATIENCE_SECONDS
        )
    say(f"seconds without a stream: {gaps.found[:1]} when apply was cleared, {gaps.found[1:]} at rotations")


if __name__ == "__main__":
    main()
