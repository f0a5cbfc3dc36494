"""A copy attempt's sign of life, and how it learns that it is to end.

The store gives an attempt some time to live; the heartbeat prolongs it. When the store says that the attempt is over,
or has not answered for as long as the attempt had to live, `over` is set: from then on others may take the attempt
for dead, and it publishes nothing any more. A wish to stop sets it too.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.state.protocol import StateStore
from airflow_provider_pgetl.engine.sync.runtime import THREADS, Runtime

ATTEMPT_SECONDS = 60.0
_BEATS_PER_LIFE = 4


class Heartbeat:
    """Beats in a thread of its own while entered."""

    def __init__(
        self, store: StateStore, attempt: int, ttl: float = ATTEMPT_SECONDS, runtime: Runtime = THREADS
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._attempt = attempt
        self._ttl = ttl
        self._ended = runtime.flag()
        self._thread = runtime.thread(self._beat, f"pgetl copy {attempt} heartbeat")
        self.over = runtime.flag()
        self.why = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def end(self, why: str) -> None:
        """The attempt is over; the first reason stays."""
        self.why = self.why or why
        self.over.set()

    def _beat(self) -> None:
        alive_until = self._runtime.monotonic() + self._ttl
        while not self._ended.wait(self._ttl / _BEATS_PER_LIFE) and not self.over.is_set():
            if self._prolong():
                alive_until = self._runtime.monotonic() + self._ttl
            elif self._runtime.monotonic() >= alive_until:
                self.end("the store could not be reached")

    def _prolong(self) -> bool:
        try:
            alive = self._store.beat_attempt(self._attempt, self._ttl)
        except PgetlError as error:
            if error.kind is ErrorKind.STORE:
                return False
            self.end(error.message)
            return False
        if not alive:
            self.end("it was given up for dead")
        return alive
