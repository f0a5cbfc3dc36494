"""One cell: its tests in its environment, and what came of them."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.matrix.cells import Cell
from tests.matrix.environments import KEPT, ROOT, Missing, NotInstalled, environment
from tests.processes.deployment import EXECUTOR, METADATA

_NOT_INHERITED = ("PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
_UNIT = ("-n", "2", "--dist", "loadfile", "-m", "not servers and not spark and not airflow and not slow")
_END_TO_END = ("tests/processes", "-o", "faulthandler_timeout=1700", "-m", "airflow and not slow")


@dataclass(frozen=True, slots=True)
class Result:
    """`said` is why a cell was skipped or failed, or how many tests passed."""

    outcome: Literal["passed", "failed", "skipped"]
    said: str
    seconds: float


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
    said = []
    for name, arguments in (("unit", _UNIT), ("end to end", _END_TO_END)):
        code, last = _pytest(cell, interpreter, log, arguments)
        said.append(f"{name}: {last}")
        if code:
            return "failed", f"{', '.join(said)}; see {log.relative_to(ROOT)}"
    return "passed", ", ".join(said)


def _pytest(cell: Cell, interpreter: Path, log: Path, arguments: tuple[str, ...]) -> tuple[int, str]:
    """Its exit status, and its last line."""
    inherited = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    }
    variables = {
        **inherited,
        EXECUTOR: cell.executor,
        METADATA: cell.metadata,
        "PATH": f"{interpreter.parent}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_PYTHON": str(interpreter),
        "PYSPARK_DRIVER_PYTHON": str(interpreter),
    }
    command = [interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    with log.open("ab") as output:
        code = subprocess.run(command, check=False, cwd=ROOT, env=variables, stdout=output, stderr=output).returncode
    lines = log.read_text(errors="replace").strip().splitlines()
    return code, lines[-1].strip("= ") if lines else ""
