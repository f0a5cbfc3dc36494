"""Names of processes, by which it can be determined later that a process has ended; private folders; memory in use;
failpoints.

A name consists of machine, boot, PID namespace, process id and start time, so that no other process, now or later, has
the same. Nothing is claimed about a process of another machine or container, nor about one that cannot be inspected:
where /proc shows a user only their own processes (`hidepid`), a running process of another user is as invisible as one
that has ended.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import ModuleType

_PARTS = 5
_UNKNOWN = "unknown"
_PROC = Path("/proc")


def this_process() -> str:
    return "/".join((*_here(), str(os.getpid()), _started(os.getpid()) or _UNKNOWN))


def is_gone(name: str) -> bool:
    """Whether the name is certainly that of a process of this machine that has ended."""
    parts = name.split("/")
    here = _here()
    if len(parts) != _PARTS or tuple(parts[:3]) != here or _UNKNOWN in here:
        return False
    pid = int(parts[3])
    started = _started(pid)
    return not _exists(pid) if started is None else started != parts[4]


def in_words(name: str) -> str:
    """Describes the process for people: its id and machine and, for a process of this machine, since when it runs."""
    parts = name.split("/")
    if len(parts) != _PARTS:
        return name
    words = f"process {parts[3]} on {parts[0]}"
    since = _began(parts[4]) if tuple(parts[:3]) == _here() else None
    return words if since is None else f"{words} since {since:%Y-%m-%d %H:%M:%S}"


def _began(ticks: str) -> datetime | None:
    """The time that is this many clock ticks after this machine's boot; None if the system does not report it."""
    try:
        booted = re.search(r"^btime (\d+)$", (_PROC / "stat").read_text(), re.MULTILINE)
        seconds = int(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
    return datetime.fromtimestamp(int(booted[1]) + seconds).astimezone() if booted else None


def _here() -> tuple[str, str, str]:
    """Machine, boot, and PID namespace."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()[:8]
        return socket.gethostname(), boot, (_PROC / "self/ns/pid").readlink().name.strip("pid:[]")
    except OSError:
        return socket.gethostname(), _UNKNOWN, _UNKNOWN


def _started(pid: int) -> str | None:
    """The start time of the process, in clock ticks since boot; "" if it has ended and its parent has not waited for it
    yet; None if /proc does not show it."""
    try:
        state, *rest = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if state in "ZX" else rest[18]


def _exists(pid: int) -> bool:
    """Whether the process exists, visible or not: the kernel reports this to every process that tries to send it a
    signal."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


# -- Private folders of processes, which are deleted with them. --------------------------------------------------------
#
# The process that creates a folder deletes it. The folder of a killed process stays; so a folder is named for its
# process, and the next process that creates one deletes those whose process has ended.


def private_folder(purpose: str) -> Path:
    """Creates an empty folder that no other user can read. Its name begins with ``pgetl-``, followed by `purpose`."""
    prefix = f"pgetl-{purpose}-"
    _remove_abandoned(Path(tempfile.gettempdir()), prefix)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{this_process().replace('/', '~')}-"))


def _remove_abandoned(place: Path, prefix: str) -> None:
    for folder in place.glob(f"{prefix}*"):
        if is_gone(_owner(folder.name.removeprefix(prefix))) and _is_ours(folder):
            shutil.rmtree(folder, ignore_errors=True)  # another process may be deleting the same folder


def _owner(rest: str) -> str:
    return rest.rpartition("-")[0].replace("~", "/")


def _is_ours(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


# -- How processes save memory. ----------------------------------------------------------------------------------------

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # of glibc's mallopt
_LARGE = 4 << 20
_POOL = "ARROW_DEFAULT_MEMORY_POOL"
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)
_DELTA = ("_RJEM_MALLOC_CONF", "narenas:1,dirty_decay_ms:100,muzzy_decay_ms:0")


def spare_pandas() -> None:
    """Keeps pyarrow from importing pandas at its first conversion of any kind, which costs 40 MB and up to seconds
    without any use. pyarrow looks for pandas once; here this happens while pandas cannot be found. Code that requests a
    data frame, or imports pandas, still gets it."""
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    blind = _Blind(threading.get_ident())
    sys.meta_path.insert(0, blind)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(blind)


def resident_bytes() -> int:
    """Returns the memory that this process holds; 0 if the system does not report it."""
    try:
        pages = int((_PROC / "self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def return_memory() -> None:
    """Makes allocators return freed memory to the system. This concerns the whole process, so only the program that
    owns the process may call it, and before anything imports pyarrow or deltalake.

    Batches are allocated as arrays of megabytes by one thread and freed by another; with their default settings,
    allocators keep twice the memory in use. Arrow is configured by the environment, which it reads once; the variable
    is then removed, because child processes must not inherit it. delta-rs has an allocator of its own, which is also
    configured by the environment, when it is imported; that variable stays, because child processes of such a program
    are pgetl's own. If the C library is not GNU's, its allocator is not configured.
    """
    os.environ.setdefault(*_DELTA)
    os.environ[_POOL] = "system"
    try:
        import pyarrow as pa

        pa.default_memory_pool()
    finally:
        del os.environ[_POOL]
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGE)
        mallopt(_ARENA_MAX, 1)


def trim() -> None:
    """Returns memory to the system that was freed between allocations still in use: values of some 100 KB are too small
    to be returned one by one, and leave gaps. Takes a millisecond, or ten if there is much to return."""
    if _TRIM is not None:
        _TRIM(0)


@dataclass(frozen=True, slots=True)
class _Blind:
    """An import hook that makes pandas impossible to find in this thread."""

    thread: int

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None) -> None:
        if name == "pandas" and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


# -- Memory in use for work in this process, in bytes, so that many writers together stay within one limit. ------------
#
# `held` is memory that exists already and so cannot wait, such as changes that are to be merged; `taken` is what a
# piece of work needs while it runs. Work waits until it fits beside both. If no work is running, the next piece begins
# whatever it needs: a single value may be larger than the limit. A thread that has taken memory must not wait for the
# work of others.
#
# The limit is that of the process. A streaming worker derives it from its `memory`; elsewhere it is `DEFAULT_BYTES`.

DEFAULT_BYTES = 256 << 20
_BESIDE = 128 << 20
"""The part that is available for work of the 350 MB that a worker may need beside its `memory`
(docs/reference/delta.md)."""


class WorkingMemory:
    def __init__(self, limit: int = DEFAULT_BYTES) -> None:
        self.limit = limit
        self._held = 0
        self._taken = 0
        self._changed = threading.Condition()

    @property
    def held(self) -> int:
        return self._held

    def hold(self, size: int) -> None:
        """Adds `size` bytes to `held`, or subtracts them if it is negative. Does not wait."""
        with self._changed:
            self._held += size
            self._changed.notify_all()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Waits until `size` bytes fit within the limit, and takes them for the duration of the block."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._held + self._taken + size <= self.limit)
            self._taken += size
        try:
            yield
        finally:
            with self._changed:
                self._taken -= size
                self._changed.notify_all()


WORKING = WorkingMemory()


def allow(memory: int) -> None:
    """Sets the limit for a streaming worker with this `memory`, half of which is for changes that wait."""
    WORKING.limit = memory // 2 + _BESIDE


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- Failpoints: places at which a process can be made to crash, so that every crash of the protocol can be tested. ----
#
# A failpoint is armed by name in the environment: ``PGETL_FAILPOINT=name`` kills the process, with SIGKILL and without
# any cleanup, when it reaches the failpoint; ``name:3`` when it reaches it for the third time. If it is not armed,
# reaching it costs one comparison.

_NAME, _, _TIME = os.environ.get("PGETL_FAILPOINT", "").partition(":")
_PASSED = itertools.count(1)


def reach(name: str) -> None:
    """Kills the process if this failpoint is armed and was reached as often as requested."""
    if name == _NAME and next(_PASSED) == int(_TIME or "1"):
        os.kill(os.getpid(), signal.SIGKILL)
