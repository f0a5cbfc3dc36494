"""Time, threads, and communication between threads: all that the shell around the pure core uses of its process.

Everything that waits, or starts a thread, does so through a `Runtime`. In production that is `THREADS`; the simulation
has a runtime that runs the same shell in a single thread, in an order drawn from a seed, with a clock of its own.
Therefore everything that blocks must block through the runtime: a wait that bypasses it would stop a simulation
forever.
"""

from __future__ import annotations

import itertools
import logging
import queue
import random
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, TypeVar

from airflow_provider_pgetl.engine.model.errors import Backoff, ErrorKind, PgetlError
from airflow_provider_pgetl.engine.runtime import processes

T = TypeVar("T")

log = logging.getLogger(__name__)


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


# -- What expires in a store, such as a lease, is renewed by a thread of its own. --------------------------------------
#
# No work of a process may delay the renewal: taking over a lake of many tables takes longer than a lease lasts.


class Renewal:
    """Renews until `stop`, `times` in each `ttl` seconds.

    `renew`: renews for `ttl` seconds more; returns False if it is not held any more.
    `lost`: called at most once, when others may own what was held. Its argument is None if `renew` returned False; else
    the error: a lasting one, or the last one of a store that was out of reach for as long as `ttl`.
    """

    def __init__(
        self,
        name: str,
        renew: Callable[[], bool],
        lost: Callable[[PgetlError | None], None],
        ttl: float,
        times: int,
        runtime: Runtime = THREADS,
    ) -> None:
        self._name = name
        self._renew = renew
        self._lost = lost
        self._ttl = ttl
        self._times = times
        self._runtime = runtime
        self._renewed = runtime.monotonic()
        self._over = runtime.flag()
        self._thread = runtime.thread(self._run, name)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._over.wait(self._ttl / self._times):
            asked = self._runtime.monotonic()
            try:
                if not self._renew():
                    self._lost(None)
                    return
                self._renewed = asked
            except PgetlError as error:
                if not error.transient or self._runtime.monotonic() - self._renewed > self._ttl:
                    self._lost(error)
                    return
                log.warning("%s could not be renewed: %s", self._name, error)
            except Exception as defect:  # without a renewal others may begin, unnoticed by this process
                log.exception("%s is not renewed any more", self._name)
                self._lost(PgetlError(ErrorKind.INTERNAL, f"{self._name} could not be renewed: {defect!r}."))
                return
