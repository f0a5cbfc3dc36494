"""What is being worked on in this process, in bytes: so that many writers together stay within one bound.

`held` is what cannot wait, because it exists already, such as changes that are to be merged; `taken` is what a piece of
work needs while it runs. Work waits until it fits beside both. If no work is under way, the next one begins whatever it
needs: a single value may be larger than all that is allowed. Who has taken some must not wait for others' work.

The bound is one of the process. A streaming worker derives it from its `memory`; elsewhere it is `DEFAULT_BYTES`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
