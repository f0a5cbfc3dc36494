"""`python -m tests.edges --seed N [--steps M] [--tables T] [--skip 3,7-12] [--lake] [--show] [--count K]`"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.edges.plan import draw_plan
from tests.edges.running import failure_of


def main() -> int:
    options = _options()
    failed = []
    for seed in range(options.seed, options.seed + options.count):
        plan = draw_plan(seed, options.steps, lake=options.lake, tables=options.tables)
        if options.show:
            print(plan)
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            failure = failure_of(plan, Path(folder), _numbers(options.skip))
        if failure is not None:
            print(failure)
            failed.append(seed)
        print(f"seed {seed}: {'FAILED' if failure else 'well'} in {time.monotonic() - began:.0f} s", flush=True)
    if failed:
        print(f"failed: {', '.join(map(str, failed))}")
    return 1 if failed else 0


def _numbers(text: str) -> set[int]:
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.edges", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="of the first plan; by default a new one each time")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tables", type=int, default=None, help="how many tables; by default the seed says")
    parser.add_argument("--count", type=int, default=1, help="how many seeds, one after the other")
    parser.add_argument("--skip", default="", help="numbers of steps that are left out")
    parser.add_argument("--lake", action="store_true", help="to Delta Lake instead of PostgreSQL")
    parser.add_argument("--show", action="store_true", help="print the plan and do nothing")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = time.time_ns() // 1_000_000 % 1_000_000_000
    return options


if __name__ == "__main__":
    sys.exit(main())
