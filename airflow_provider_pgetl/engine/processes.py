"""The names of processes, by which one can tell later that a process is no more.

A name holds machine, boot, the space that process ids are counted in, process id and the time of its start, so no other
process, now or later, has the same. Of a process of another machine or container nothing is claimed, nor of one that
cannot be looked at: where /proc shows a user only their own processes (`hidepid`), a process of another user that runs
is as invisible as one that has ended.
"""

from __future__ import annotations

import os
import re
import socket
from datetime import datetime
from pathlib import Path

_PARTS = 5
_UNKNOWN = "unknown"
_PROC = Path("/proc")


def this_process() -> str:
    return "/".join((*_here(), str(os.getpid()), _started(os.getpid()) or _UNKNOWN))


def is_gone(name: str) -> bool:
    """Whether it certainly was a process of this machine that has ended."""
    parts = name.split("/")
    here = _here()
    if len(parts) != _PARTS or tuple(parts[:3]) != here or _UNKNOWN in here:
        return False
    pid = int(parts[3])
    started = _started(pid)
    return not _exists(pid) if started is None else started != parts[4]


def in_words(name: str) -> str:
    """For people: the process and its machine, by which it can be found; of one of this machine, since when it runs."""
    parts = name.split("/")
    if len(parts) != _PARTS:
        return name
    words = f"process {parts[3]} on {parts[0]}"
    since = _began(parts[4]) if tuple(parts[:3]) == _here() else None
    return words if since is None else f"{words} since {since:%Y-%m-%d %H:%M:%S}"


def _began(ticks: str) -> datetime | None:
    """The moment that lies so many clock ticks after this machine's boot; None where the system does not say."""
    try:
        booted = re.search(r"^btime (\d+)$", (_PROC / "stat").read_text(), re.MULTILINE)
        seconds = int(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
    return datetime.fromtimestamp(int(booted[1]) + seconds).astimezone() if booted else None


def _here() -> tuple[str, str, str]:
    """Machine, boot, and the container's process ids."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()[:8]
        return socket.gethostname(), boot, (_PROC / "self/ns/pid").readlink().name.strip("pid:[]")
    except OSError:
        return socket.gethostname(), _UNKNOWN, _UNKNOWN


def _started(pid: int) -> str | None:
    """When the process began, in clock ticks since boot; "" when it is dead and only nobody has asked yet what it died
    of; None when /proc does not show it."""
    try:
        state, *rest = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state in "ZX" else rest[18]


def _exists(pid: int) -> bool:
    """Whether there is such a process, shown or not: the kernel says so to everybody who would send it a signal."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
