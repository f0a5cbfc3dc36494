"""The names of processes, by which one can tell later that a process is no more.

A name holds machine, boot, the space that process ids are counted in, process id and the time of its start, so no other
process, now or later, has the same. Of a process of another machine or container nothing is claimed.
"""

from __future__ import annotations

import os
import re
import socket
from datetime import datetime
from pathlib import Path

_PARTS = 5


def this_process() -> str:
    return "/".join((*_here(), str(os.getpid()), _started(os.getpid())))


def is_gone(name: str) -> bool:
    """Whether it certainly was a process of this machine that has ended."""
    parts = name.split("/")
    if len(parts) != _PARTS or tuple(parts[:3]) != _here():
        return False
    return _started(int(parts[3])) != parts[4]


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
        booted = re.search(r"^btime (\d+)$", Path("/proc/stat").read_text(), re.MULTILINE)
        seconds = int(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
    return datetime.fromtimestamp(int(booted[1]) + seconds).astimezone() if booted else None


def _here() -> tuple[str, str, str]:
    """Machine, boot, and the container's process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        return socket.gethostname(), boot, Path("/proc/self/ns/pid").readlink().name.strip("pid:[]")
    except OSError:
        return socket.gethostname(), "unknown", "unknown"


def _started(pid: int) -> str:
    """When the process began, in clock ticks since boot; "" when there is none, or none can be seen, or it is dead and
    only nobody has asked yet what it died of."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else rest[18]
