"""``make bench``: every benchmark, one after the other. Each compares two sides in one run and prints their ratio."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_NOT_BENCHMARKS = {"__init__", "__main__", "pair"}


def main() -> None:
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if path.stem not in _NOT_BENCHMARKS:
            print(f"-- {path.stem}", flush=True)
            subprocess.run([sys.executable, "-m", f"tests.benchmarks.{path.stem}"], check=True)


if __name__ == "__main__":
    main()
