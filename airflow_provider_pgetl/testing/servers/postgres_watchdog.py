"""Ends a PostgreSQL server when the process that started it has ended.

Started beside each server by `servers.postgres_servers`. It waits until its parent has ended, for whatever reason, then
ends the postmaster named in the data directory and removes the server's home. It watches its parent's id instead of a
pipe, which children of the starter would inherit and keep open, and instead of PR_SET_PDEATHSIG, which fires when the
*thread* that started the server ends. Standard library only: it starts with `-I -S` in a few milliseconds.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path


def wait_for_orphanhood(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.3)


def end_postmaster(pid_file: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        os.kill(int(pid_file.read_text().splitlines()[0]), signal.SIGQUIT)
    give_up_at = time.monotonic() + 10
    while pid_file.exists() and time.monotonic() < give_up_at:
        time.sleep(0.05)


def main(parent: int, data: Path, home: Path) -> None:
    wait_for_orphanhood(parent)
    end_postmaster(data / "postmaster.pid")
    shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
