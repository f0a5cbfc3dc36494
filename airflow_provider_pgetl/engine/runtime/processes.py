"""The names of processes, by which one can tell later that a process is no more.

A name holds machine, boot, the space that process ids are counted in, process id and the time of its start, so no other
process, now or later, has the same. Of a process of another machine or container nothing is claimed, nor of one that
cannot be looked at: where /proc shows a user only their own processes (`hidepid`), a process of another user that runs
is as invisible as one that has ended.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
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


# -- Private folders of processes, which go with them. -----------------------------------------------------------------
#
# Whoever makes one takes it away. Of a process that was killed it stays; so it is named for its process, and the next
# to make one takes away those whose process is no more.


def private_folder(purpose: str) -> Path:
    """A new one, empty, that nobody else can read. Its name begins with `purpose`."""
    prefix = f"pgetl-{purpose}-"
    _sweep(Path(tempfile.gettempdir()), prefix)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{this_process().replace('/', '~')}-"))


def _sweep(place: Path, prefix: str) -> None:
    for folder in place.glob(f"{prefix}*"):
        if is_gone(_owner(folder.name.removeprefix(prefix))) and _is_ours(folder):
            shutil.rmtree(folder, ignore_errors=True)  # another may be sweeping the same


def _owner(rest: str) -> str:
    return rest.rpartition("-")[0].replace("~", "/")


def _is_ours(folder: Path) -> bool:
    try:
        return folder.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


# -- What processes do without, to stay small. -------------------------------------------------------------------------

_MMAP_THRESHOLD, _ARENA_MAX = -3, -8  # of glibc's mallopt
_LARGE = 4 << 20
_POOL = "ARROW_DEFAULT_MEMORY_POOL"
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None)
_DELTA = ("_RJEM_MALLOC_CONF", "narenas:1,dirty_decay_ms:100,muzzy_decay_ms:0")


def spare_pandas() -> None:
    """pyarrow imports pandas, where there is one, at its first conversion of whatever kind: 40 MB and up to seconds,
    for nothing. Here it looks for it once, in vain. Who asks for a data frame, or for pandas, gets it all the same."""
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    blind = _Blind(threading.get_ident())
    sys.meta_path.insert(0, blind)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(blind)


def return_memory() -> None:
    """Have what is freed go back to the system. Of the process as a whole, so to be called by its owner alone, and
    before anything imports pyarrow or deltalake.

    Batches come and go in arrays of megabytes, made by one thread and freed by another; left to themselves, allocators
    keep twice of what is in use. Arrow is told by the environment, where it looks once; children shall not find it
    there. delta-rs has an allocator of its own, told by the environment too when it is imported; that stays, for its
    owner's children are ours. Where the C library is not GNU's, it is left to itself.
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
    """Give back what was freed in between what is not: values of some 100 KB are too small to be given back one by
    one, and leave gaps. Takes a millisecond, or ten where there is much to give back."""
    if _TRIM is not None:
        _TRIM(0)


@dataclass(frozen=True, slots=True)
class _Blind:
    """For this thread there is no pandas."""

    thread: int

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None) -> None:
        if name == "pandas" and threading.get_ident() == self.thread:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


# -- What is being worked on in this process, in bytes: so that many writers together stay within one bound. -----------
#
# `held` is what cannot wait, because it exists already, such as changes that are to be merged; `taken` is what a piece
# of work needs while it runs. Work waits until it fits beside both. If no work is under way, the next one begins
# whatever it needs: a single value may be larger than all that is allowed. Who has taken some must not wait for others'
# work.
#
# The bound is one of the process. A streaming worker derives it from its `memory`; elsewhere it is `DEFAULT_BYTES`.

DEFAULT_BYTES = 256 << 20
_BESIDE = 128 << 20
"""Of the 350 MB that a worker may need beside its `memory` (docs/delta.md), what is left for work."""


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
        """`size` bytes more, or less where it is negative, exist. Does not wait."""
        with self._changed:
            self._held += size
            self._changed.notify_all()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Wait until there is room for so much."""
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
    """For a streaming worker whose `memory` is this: half of it is for changes that wait."""
    WORKING.limit = memory // 2 + _BESIDE


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
