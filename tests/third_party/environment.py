"""The real Delta-Spark in a virtual environment of its own, made once and kept in `.third-party`.

PySpark is the one that this Delta-Spark is built for, not the project's. Delta-Spark's classes come in the jar of the
wheel `jsoniq`, which has them all but does not register the data source `delta`: a second jar does. Both belong on the
class path of the driver; Spark's own `--jars` would be too late for the session extensions.

Packages are installed from the index that pip is configured for. `PGETL_THIRD_PARTY` names another folder to keep the
environment in.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KEPT = Path(os.environ.get("PGETL_THIRD_PARTY") or Path(__file__).parents[2] / ".third-party")
_PACKAGES = ("pyspark==4.0.5", "py4j==0.10.9.9")
_WITH_DELTA = "jsoniq==3.0.2"
_SERVICE = "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister"
_SOURCE = "org.apache.spark.sql.delta.sources.DeltaDataSource"


class NotInstalled(Exception):
    """What was to be installed was not; the message is the end of what the installer said."""


@dataclass(frozen=True, slots=True)
class Environment:
    """What a child needs to run Delta-Spark."""

    interpreter: Path
    class_path: str


def delta_spark() -> Environment:
    """The environment, which is made where there is none, or where the packages wanted are others."""
    folder = KEPT / "delta-spark"
    with _alone(folder):
        stamp, wanted = folder / "installed", " ".join((*_PACKAGES, _WITH_DELTA))
        if not stamp.exists() or stamp.read_text() != wanted:
            _install(folder)
            stamp.write_text(wanted)
    jars = sorted(folder.glob("lib/python*/site-packages/jsoniq/jars/*.jar"))
    return Environment(folder / "bin" / "python", os.pathsep.join(map(str, [*jars, folder / "registers.jar"])))


def _install(folder: Path) -> None:
    """jsoniq without what it asks for: another PySpark, and a second copy of Delta-Spark that needs a repository of
    jars."""
    _run(sys.executable, "-m", "venv", "--clear", folder)
    pip = (folder / "bin" / "python", "-m", "pip", "install", "--quiet")
    _run(*pip, *_PACKAGES)
    _run(*pip, "--no-deps", _WITH_DELTA)
    with zipfile.ZipFile(folder / "registers.jar", "w") as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n\n")
        jar.writestr(_SERVICE, f"{_SOURCE}\n")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Of the test processes that run side by side one installs, the others wait for it."""
    KEPT.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled((done.stderr or done.stdout).strip()[-2000:])
