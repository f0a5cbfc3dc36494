"""Time, threads, and what threads tell each other by: all that the shell around the pure core has of its process.

Everything that waits, or starts a thread, does so through a `Runtime`. In production that is `THREADS`; the simulation
has one that runs the same shell in a single thread, in an order drawn from a seed, under a clock of its own. So
whatever blocks must block through here: a wait that goes past the runtime would stop a simulated world for good.
"""

from __future__ import annotations

import itertools
import queue
import random
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar

from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.runtime import processes

T = TypeVar("T")


class Flag(Protocol):
    """As `threading.Event`."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Lock(Protocol):
    """As `threading.Lock`, for `with`."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Queue(Protocol[T]):
    """As `queue.SimpleQueue`; `get` raises `queue.Empty` when time is up."""

    def put(self, item: T, /) -> None: ...

    def get(self, *, timeout: float | None = None) -> T: ...

    def get_nowait(self) -> T: ...

    def empty(self) -> bool: ...


class Thread(Protocol):
    """As `threading.Thread`, a daemon: it does not keep its process alive."""

    def start(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...


class Runtime(Protocol):
    def monotonic(self) -> float:
        """Seconds that never go back; they mean something within this process only."""

    def sleep(self, seconds: float) -> None: ...

    def uniform(self, low: float, high: float) -> float:
        """A number drawn at random between the two, to spread what would come at once."""

    def flag(self) -> Flag: ...

    def lock(self) -> Lock: ...

    def queue(self) -> Queue[Any]: ...

    def thread(self, work: Callable[[], None], name: str) -> Thread: ...

    def process(self) -> str:
        """The name of this process, as a lease or a copy attempt bears it."""

    def is_gone(self, process: str) -> bool:
        """Whether the process of this name has certainly ended."""


class _Threads:
    """The machine's own."""

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)

    def flag(self) -> Flag:
        return threading.Event()

    def lock(self) -> Lock:
        return threading.Lock()

    def queue(self) -> Queue[Any]:
        return queue.SimpleQueue()

    def thread(self, work: Callable[[], None], name: str) -> Thread:
        return threading.Thread(target=work, name=name, daemon=True)

    def process(self) -> str:
        return processes.this_process()

    def is_gone(self, process: str) -> bool:
        return processes.is_gone(process)


THREADS: Runtime = _Threads()


# -- Passing trouble is waited out in place, for a bounded time. -------------------------------------------------------

PATIENCE = 30.0
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0


def never() -> bool:
    return False


def persistently(
    action: Callable[[], T],
    stopped: Callable[[], bool] = never,
    patience: float = PATIENCE,
    runtime: Runtime = THREADS,
) -> T:
    """Do it again, for `patience` seconds, while it fails for reasons that pass. For actions that may be repeated."""
    give_up_at = runtime.monotonic() + patience
    for attempt in itertools.count():
        try:
            return action()
        except PgetlError as error:
            wait = pause(attempt, runtime)
            if not error.transient or stopped() or runtime.monotonic() + wait > give_up_at:
                raise
        runtime.sleep(wait)
    raise AssertionError("counting has no end")


def pause(attempt: int, runtime: Runtime = THREADS) -> float:
    """Seconds before the next attempt: doubling, and spread, so that many do not come back at once."""
    return min(_FIRST_PAUSE * float(2 ** min(attempt, 10)), _LONGEST_PAUSE) * runtime.uniform(0.5, 1.0)
