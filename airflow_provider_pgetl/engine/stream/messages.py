"""A stream's inbox: what other threads tell it, taken in by the stream's own thread at a moment of its choosing.

Putting wakes the stream, whether it waits here or on its socket.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import TableState
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.runtime.threads import THREADS, Queue, Runtime


@dataclass(frozen=True, slots=True)
class TablesChanged:
    """Tables as the store has them now, None of one that it has no more: all that have changed since the last."""

    states: dict[TableName, TableState | None]


@dataclass(frozen=True, slots=True)
class CeilingRecorded:
    """`boundary` is None when the store could not be written."""

    boundary: Boundary | None


@dataclass(frozen=True, slots=True)
class BatchWritten:
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


Message = TablesChanged | CeilingRecorded | BatchWritten | WriteFailed | ApplyStandsAt | Ask | Hurry | Stop


class Inbox:
    """Letters in the order in which they came. News that wait are one letter, however often tables change meanwhile."""

    def __init__(self, runtime: Runtime = THREADS) -> None:
        self._lock = runtime.lock()
        self._changes: TablesChanged | None = None
        self._messages: Queue[Message] = runtime.queue()
        self._kept: list[Message] = []
        self.wake: Callable[[], None] | None = None

    def put(self, message: Message) -> None:
        self._messages.put(message)
        if self.wake is not None:
            self.wake()

    def tell(self, states: Mapping[TableName, TableState | None]) -> None:
        """Put news."""
        with self._lock:
            if self._changes is not None:
                self._changes.states.update(states)
                return
            self._changes = changes = TablesChanged(dict(states))
        self.put(changes)

    def forget_changes(self) -> None:
        """Of what waits; for one who learns by other means how all tables are."""
        with self._lock:
            if self._changes is not None:
                self._changes.states.clear()

    def wait(self, timeout: float) -> None:
        """Until there is a letter, or time is up."""
        try:
            self._kept.append(self._messages.get(timeout=timeout))
        except queue.Empty:
            return

    def take(self) -> Iterator[Message]:
        """Every letter there is now."""
        kept, self._kept = self._kept, []
        for message in kept:
            yield self._opened(message)
        while not self._messages.empty():
            yield self._opened(self._messages.get_nowait())

    def _opened(self, message: Message) -> Message:
        """News that are being read grow no more."""
        if message is self._changes:
            with self._lock:
                self._changes = None
        return message
