"""What processes do without, to stay small."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

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
