"""A virtual environment for each release of Airflow and each Python, kept in `.matrix` as long as its pins stay.

The pins are those of `constraints.txt`, but for what a release needs otherwise, which stands in `requirements`.
Nothing is downloaded but packages: an interpreter that is not on this machine is missing.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".matrix"
_REQUIREMENTS = Path(__file__).with_name("requirements")
_CELERY = _REQUIREMENTS / "celery.txt"
_UV = (sys.executable, "-m", "uv")


class Missing(Exception):
    """The machine lacks something; the message names it."""


class NotInstalled(Exception):
    """What was to be installed was not; the message is the end of what the installer said."""


def pins(airflow: str) -> Mapping[str, str]:
    """Package → version, under that release."""
    own = _REQUIREMENTS / f"airflow-{airflow}.txt"
    found = _pins_of(ROOT / "constraints.txt") | _pins_of(_CELERY) | (_pins_of(own) if own.exists() else {})
    release = found["apache-airflow"]
    assert release.startswith(f"{airflow}."), f"there are no pins for Airflow {airflow}: those found are for {release}"
    return found


def environment(airflow: str, python: str) -> Path:
    """The interpreter of the environment, which is made where there is none, or where its pins have changed."""
    folder = KEPT / f"airflow{airflow}-python{python}"
    interpreter, stamp = folder / "bin" / "python", folder / "installed-from"
    constraints = "".join(f"{name}=={version}\n" for name, version in pins(airflow).items())
    wanted = hashlib.sha256((constraints + (ROOT / "pyproject.toml").read_text()).encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        _uv("venv", "--clear", "--python", _base(python), folder)
        file = folder / "constraints.txt"
        file.write_text(constraints)
        found = ("--find-links", _wheel_of("pyspark", pins(airflow)["pyspark"]))
        _uv("pip", "install", "--python", interpreter, *found, "-c", file, "-r", _CELERY, "-e", f"{ROOT}[dev]")
        stamp.write_text(wanted)
    return interpreter


def _pins_of(file: Path) -> dict[str, str]:
    lines = (line for line in file.read_text().splitlines() if not line.startswith("#"))
    return {
        re.sub(r"[-_.]+", "-", name).lower(): version for name, _, version in (line.partition("==") for line in lines)
    }


def _base(python: str) -> str:
    """That of the machine. pyenv's own are looked at before its shims, which run those alone that are switched on."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    path = os.pathsep.join([*map(str, pyenv.glob("versions/*/bin")), os.environ["PATH"]])
    command = [*_UV, "python", "find", "--system", "--no-python-downloads", python]
    found = subprocess.run(command, check=False, capture_output=True, text=True, env={**os.environ, "PATH": path})
    if found.returncode:
        raise Missing(f"no Python {python} on this machine: put one on the PATH, or install it with pyenv or uv")
    return found.stdout.strip()


def _wheel_of(package: str, version: str) -> Path:
    """The folder with the wheel of what is published as source alone. uv would build it for each environment, and keep
    each build: a gigabyte of Spark."""
    folder = KEPT / "wheels"
    if not list(folder.glob(f"{package}-{version}-*.whl")):
        _run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, f"{package}=={version}")
    return folder


def _uv(*arguments: str | Path) -> None:
    _run(*_UV, "--quiet", *arguments)


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NotInstalled(done.stderr.strip()[-2000:])
