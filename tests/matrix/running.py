"""One cell: its tests in its environment, and what came of them."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.matrix.cells import NEWEST, Cell
from tests.matrix.environments import KEPT, ROOT, Missing, NotInstalled, environment
from tests.processes.deployment import EXECUTOR, METADATA

_NOT_INHERITED = ("PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
_UNIT = ("-n", "2", "--dist", "loadfile", "-m", "not servers and not spark and not airflow and not slow")
_END_TO_END = ("tests/processes", "-o", "faulthandler_timeout=1700", "-m", "airflow and (not slow or matrix)")


@dataclass(frozen=True, slots=True)
class Result:
    """`said` is why a cell was skipped or failed, or how many tests passed."""

    outcome: Literal["passed", "failed", "skipped"]
    said: str
    seconds: float


@dataclass(frozen=True, slots=True)
class _Tests:
    failed: bool
    last_line: str


def run(cell: Cell) -> Result:
    """All of it; the output goes to a log in `.matrix`."""
    began = time.monotonic()
    outcome, said = _run(cell, KEPT / f"{cell.name}.log")
    return Result(outcome, said, time.monotonic() - began)


def _run(cell: Cell, log: Path) -> tuple[Literal["passed", "failed", "skipped"], str]:
    try:
        interpreter = environment(cell.airflow, cell.python)
    except Missing as missing:
        return "skipped", str(missing)
    except NotInstalled as error:
        return "failed", f"its environment cannot be installed: {error}"
    log.unlink(missing_ok=True)
    unit = _pytest(cell, interpreter, log, (_unit_tests(cell), *_UNIT))
    end_to_end = _pytest(cell, interpreter, log, _END_TO_END)
    said = f"unit: {unit.last_line}; end to end: {end_to_end.last_line}"
    if unit.failed or end_to_end.failed:
        return "failed", f"{said}; see {log.relative_to(ROOT)}"
    return "passed", said


def _unit_tests(cell: Cell) -> str:
    """Every one of them under the newest Airflow, and so once under each Python; else those that Airflow concerns."""
    return "tests" if cell.airflow == NEWEST else "tests/provider"


def _pytest(cell: Cell, interpreter: Path, log: Path, arguments: tuple[str, ...]) -> _Tests:
    inherited = {key: value for key, value in os.environ.items() if key not in _NOT_INHERITED}
    # asyncio's debug mode ends in segmentation faults of Airflow 3.1's api-server on Python 3.12.1 and 3.13.0.
    variables = {
        **inherited,
        EXECUTOR: cell.executor,
        METADATA: cell.metadata,
        "PYTHONASYNCIODEBUG": "",
        "PATH": f"{interpreter.parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": str(interpreter),
        "PYSPARK_DRIVER_PYTHON": str(interpreter),
    }
    command = [interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    with log.open("ab") as output:
        done = subprocess.run(command, check=False, cwd=ROOT, env=variables, stdout=output, stderr=output)
    lines = log.read_text(errors="replace").strip().splitlines()
    return _Tests(done.returncode != 0, lines[-1].strip("= ") if lines else "")
