"""Processes of this machine, and ports for them."""

import contextlib
import random
import socket
import time
from collections.abc import Sequence

import psutil

# Below the range that the kernel gives to outgoing connections. Inside it, a client that retries while its server is
# down can be connected to *itself*, and the port is then taken.
_PORTS = range(20_000, 32_768)


class NoFreePort(Exception):
    """Every port that was tried is taken."""


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
    """A zombie does not: the processes were not our children, and whoever took them over may never reap."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
