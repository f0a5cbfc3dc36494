"""`python -m tests.matrix [--only TEXT]... [--list]`"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.matrix.cells import CELLS, Cell
from tests.matrix.environments import pins
from tests.matrix.running import Result, run

_COLOURS = {"passed": "green", "failed": "red", "skipped": "yellow"}


def main() -> int:
    options = _options()
    cells = [cell for cell in CELLS if all(text in cell.name for text in options.only)]
    if options.list:
        print("\n".join(cell.name for cell in cells))
        return 0
    results: dict[Cell, Result] = {}
    for cell in cells:
        print(f"-- {cell.name}", flush=True)
        results[cell] = run(cell)
        print(f"   {results[cell].outcome}: {results[cell].said}", flush=True)
    Console().print(_table(results))
    return 1 if not results or any(result.outcome == "failed" for result in results.values()) else 0


def _table(results: dict[Cell, Result]) -> Table:
    table = Table("Airflow", "Python", "executor", "metadata", "outcome", "minutes", "")
    for cell, result in results.items():
        outcome = f"[{_COLOURS[result.outcome]}]{result.outcome}[/]"
        minutes = f"{result.seconds / 60:.1f}"
        release = pins(cell.airflow)["apache-airflow"]
        table.add_row(release, cell.python, cell.executor, cell.metadata, outcome, minutes, escape(result.said))
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="only cells with this in their name; all of them")
    parser.add_argument("--list", action="store_true", help="print the names of the cells and do nothing")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
