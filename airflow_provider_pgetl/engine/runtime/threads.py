"""Time, threads, and communication between threads: all that the shell around the pure core uses of its process.

Everything that waits, or starts a thread, does so through a `Runtime`. In production that is `THREADS`; the simulation
has a runtime that runs the same shell in a single thread, in an order drawn from a seed, with a clock of its own.
Therefore everything that blocks must block through the runtime: a wait that bypasses it would stop a simulation
forever.
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

from airflow_provider_pgetl.engine.model.errors import Backoff, PgetlError
from airflow_provider_pgetl.engine.runtime import processes

T = TypeVar("T")


class Flag(Protocol):
    """Like `threading.Event`."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...


class Lock(Protocol):
    """Like `threading.Lock`, for `with`."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Queue(Protocol[T]):
    """Like `queue.SimpleQueue`; `get` raises `queue.Empty` when the timeout has passed."""

    def put(self, item: T, /) -> None: ...

    def get(self, *, timeout: float | None = None) -> T: ...

    def get_nowait(self) -> T: ...

    def empty(self) -> bool: ...


class Thread(Protocol):
    """Like `threading.Thread`, as a daemon: it does not keep its process alive."""

    def start(self) -> None: ...

    def join(self, timeout: float | None = None) -> None: ...

    def is_alive(self) -> bool: ...


class Runtime(Protocol):
    def monotonic(self) -> float:
        """Seconds of a clock that never goes back; meaningful within this process only."""

    def sleep(self, seconds: float) -> None: ...

    def uniform(self, low: float, high: float) -> float:
        """A random number between the two, to spread actions that would otherwise coincide."""

    def flag(self) -> Flag: ...

    def lock(self) -> Lock: ...

    def queue(self) -> Queue[Any]: ...

    def thread(self, work: Callable[[], None], name: str) -> Thread: ...

    def process(self) -> str:
        """The name of this process, as leases and copy attempts record it."""

    def is_gone(self, process: str) -> bool:
        """Whether the process of this name has certainly ended."""


class _Threads:
    """The runtime of production: threads and clock of the machine."""

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


# -- Transient errors are retried in place, for a bounded time. --------------------------------------------------------

PATIENCE = 30.0
_BACKOFF = Backoff(0.2, 5.0)


def never() -> bool:
    return False


def persistently(
    action: Callable[[], T],
    stopped: Callable[[], bool] = never,
    patience: float = PATIENCE,
    runtime: Runtime = THREADS,
) -> T:
    """Calls the action, and repeats it while it fails with transient errors, for at most `patience` seconds or until
    `stopped` returns true. The action must be repeatable."""
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
    """Seconds before the next attempt: doubled each time, and randomised, so that many callers do not return at
    once."""
    return _BACKOFF.after(attempt + 1) * runtime.uniform(0.5, 1.0)
