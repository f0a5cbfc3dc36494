"""Ends an Airflow, with everything that it started, when the process that started it has ended.

Its processes are recognised by the AIRFLOW_HOME in their environment, a folder made for that one Airflow: children that
lead sessions of their own, or that were left behind by a killed parent, have it too, and no other process has.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from pathlib import Path

import psutil

from airflow_provider_pgetl.testing.servers.installations import wait_for_the_end_of

_GRACE_SECONDS = 12.0


def members_of(home: Path) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _home_of(process) == str(home)]


def end_everything_of(home: Path, grace: float) -> list[str]:
    """Gives the remaining processes some time to end by themselves, then kills them; returns the command lines of the
    killed ones."""
    wait_for_the_end_of(members_of(home), grace)
    killed: list[str] = []
    while left := members_of(home):
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                killed.append(" ".join(process.cmdline()))
                process.kill()
        wait_for_the_end_of(left)
    return killed


def _home_of(process: psutil.Process) -> str | None:
    """Returns None for a zombie, which has no environment any more, and for processes of other users."""
    try:
        home: str | None = process.environ().get("AIRFLOW_HOME")
    except (psutil.Error, OSError):
        return None
    return home


def main(parent: int, home: Path) -> None:
    while os.getppid() == parent:
        time.sleep(0.3)
    for process in members_of(home):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    end_everything_of(home, _GRACE_SECONDS)
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
