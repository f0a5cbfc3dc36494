"""A stream's mailbox: what other threads tell it, taken in by the stream's own thread at a moment of its choosing.

Putting wakes the stream, whether it waits here or on its socket.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.phases import TableState
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.sync.runtime import THREADS, Queue, Runtime
from airflow_provider_pgetl.engine.tables import TableName


@dataclass(frozen=True, slots=True)
class News:
    """Tables as the store has them now, None of one that it has no more: all that have changed since the last."""

    states: dict[TableName, TableState | None]


@dataclass(frozen=True, slots=True)
class CeilingRecorded:
    """`boundary` is None when the store could not be written."""

    boundary: Boundary | None


@dataclass(frozen=True, slots=True)
class Written:
    """The batch is durable; `missed` of its updates and deletes found no row. `differing`: of which tables of the
    destination that proves that they are not what the source has: where a change may come twice it proves nothing."""

    missed: int = 0
    differing: Collection[TableName] = ()


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """`positions` are the destination's after the failure, where it could be asked."""

    error: PgetlError
    positions: Mapping[TableName, Boundary] | None


@dataclass(frozen=True, slots=True)
class ApplyStandsAt:
    position: Boundary


@dataclass(frozen=True, slots=True)
class Ask:
    """Find out where the server is."""


@dataclass(frozen=True, slots=True)
class Hurry:
    """Somebody waits for what was read to be durable."""


@dataclass(frozen=True, slots=True)
class Stop:
    """`drain`: finish the write in flight first. Otherwise at once, without another acknowledgement. `patient`: a write
    that is under way may take as long as it takes; one that has failed is not tried again for ever."""

    why: str
    drain: bool
    patient: bool = False


Letter = News | CeilingRecorded | Written | WriteFailed | ApplyStandsAt | Ask | Hurry | Stop


class Mailbox:
    """Letters in the order in which they came. News that wait are one letter, however often tables change meanwhile."""

    def __init__(self, runtime: Runtime = THREADS) -> None:
        self._lock = runtime.lock()
        self._news: News | None = None
        self._letters: Queue[Letter] = runtime.queue()
        self._kept: list[Letter] = []
        self.wake: Callable[[], None] | None = None

    def put(self, letter: Letter) -> None:
        self._letters.put(letter)
        if self.wake is not None:
            self.wake()

    def tell(self, states: Mapping[TableName, TableState | None]) -> None:
        """Put news."""
        with self._lock:
            if self._news is not None:
                self._news.states.update(states)
                return
            self._news = news = News(dict(states))
        self.put(news)

    def forget_news(self) -> None:
        """Of what waits; for one who learns by other means how all tables are."""
        with self._lock:
            if self._news is not None:
                self._news.states.clear()

    def wait(self, timeout: float) -> None:
        """Until there is a letter, or time is up."""
        try:
            self._kept.append(self._letters.get(timeout=timeout))
        except queue.Empty:
            return

    def take(self) -> Iterator[Letter]:
        """Every letter there is now."""
        kept, self._kept = self._kept, []
        for letter in kept:
            yield self._opened(letter)
        while not self._letters.empty():
            yield self._opened(self._letters.get_nowait())

    def _opened(self, letter: Letter) -> Letter:
        """News that are being read grow no more."""
        if letter is self._news:
            with self._lock:
                self._news = None
        return letter
