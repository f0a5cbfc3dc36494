"""`python -m tests.simulation --schedules N [--seed S] [--world W] [--trace]`, or `--known`"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

from tests.simulation import broken_rules
from tests.simulation.mutations import caught
from tests.simulation.schedule import run_seed, shrink, told
from tests.simulation.worlds import WORLDS


def main() -> int:
    options = _options()
    if options.known:
        note_seeds()
        return 0
    began = time.perf_counter()
    for number in range(options.schedules):
        seed = options.seed + number
        trace: list[str] | None = [] if options.trace else None
        failure = run_seed(seed, trace, options.world)
        if trace is not None:
            print("\n".join(trace))
        if failure is not None:
            print(f"seed {seed} fails after {len(failure.steps)} steps: {failure.what}\nmaking it smaller ...")
            print(told(shrink(failure)))
            return 1
    took = time.perf_counter() - began
    print(f"{options.schedules} schedules from seed {options.seed} on, {options.schedules / took:.0f} a second")
    return 0


def note_seeds() -> None:
    """Writes into the file of the rules, for each, the first seed from the known one on with which it is noticed."""
    path = Path(broken_rules.__file__)
    for rule, mutation in broken_rules.RULES.items():
        failure = caught(rule)
        print(f"{rule}: {'not noticed' if failure is None else failure.seed}", flush=True)
        if failure is not None and failure.seed != mutation.known:
            before, name, rest = path.read_text().partition(f'"{rule}",')
            path.write_text(before + name + re.sub(r"known=\d+", f"known={failure.seed}", rest, count=1))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="of the first schedule; by default a new one each time")
    parser.add_argument("--world", choices=WORLDS, default="any")
    parser.add_argument("--trace", action="store_true", help="tell every schedule, not only one that fails")
    parser.add_argument("--known", action="store_true", help="find anew the seeds that notice rules broken on purpose")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = time.time_ns() // 1_000_000 % 1_000_000_000
    return options


if __name__ == "__main__":
    sys.exit(main())
