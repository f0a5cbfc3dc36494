"""What the parts of a stream tell each other: the messages of other threads, and the effects that its core asks for.

The stream's own thread takes the messages from its inbox when it is ready to. `Inbox.put` wakes the stream, whether it
waits on the inbox or on its socket.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import Event, TableState
from airflow_provider_pgetl.engine.model.positions import Boundary, HighWater, Seen
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.runtime.threads import THREADS, Queue, Runtime
from airflow_provider_pgetl.engine.state.store import APPLY_CEILING


@dataclass(frozen=True, slots=True)
class TablesChanged:
    """The states of all tables that have changed in the store since the last such message; None for a table that the
    store no longer has."""

    states: dict[TableName, TableState | None]


@dataclass(frozen=True, slots=True)
class CeilingRecorded:
    """The answer to `RecordCeiling`. `boundary` is the recorded ceiling, None when the store could not be written."""

    boundary: Boundary | None


@dataclass(frozen=True, slots=True)
class BatchWritten:
    """The batch is durable; `missed` of its updates and deletes found no row. `differing`: the destination's tables for
    which this proves that they differ from the source. Where a change may be delivered twice it proves nothing."""

    missed: int = 0
    differing: Collection[TableName] = ()


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """The batch could not be written. `positions` are the destination's after the failure, None if it could not be
    asked."""

    error: PgetlError
    positions: Mapping[TableName, Boundary] | None


@dataclass(frozen=True, slots=True)
class ApplyStandsAt:
    position: Boundary


@dataclass(frozen=True, slots=True)
class Ask:
    """Requests that the stream ask the server for its position."""


@dataclass(frozen=True, slots=True)
class Hurry:
    """Requests that the changes read be written at once, because a bounded run waits for them to be durable."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the stream. `drain`: finish the write in flight first; otherwise end at once, without another
    acknowledgement. `patient`: wait for a write under way without a time limit; a write that has failed is not retried
    for ever."""

    why: str
    drain: bool
    patient: bool = False


Message = TablesChanged | CeilingRecorded | BatchWritten | WriteFailed | ApplyStandsAt | Ask | Hurry | Stop


class Inbox:
    """Messages in the order in which they came. At most one `TablesChanged` waits, however often tables change
    meanwhile: further changes are merged into it."""

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
        """Puts changed table states, merged into the `TablesChanged` that waits, if there is one."""
        with self._lock:
            if self._changes is not None:
                self._changes.states.update(states)
                return
            self._changes = changes = TablesChanged(dict(states))
        self.put(changes)

    def forget_changes(self) -> None:
        """Empties the `TablesChanged` that waits; for a caller that obtains the states of all tables by other means."""
        with self._lock:
            if self._changes is not None:
                self._changes.states.clear()

    def wait(self, timeout: float) -> None:
        """Waits until there is a message, or for `timeout` seconds."""
        try:
            self._kept.append(self._messages.get(timeout=timeout))
        except queue.Empty:
            return

    def take(self) -> Iterator[Message]:
        """Yields every message that is there now."""
        kept, self._kept = self._kept, []
        for message in kept:
            yield self._opened(message)
        while not self._messages.empty():
            yield self._opened(self._messages.get_nowait())

    def _opened(self, message: Message) -> Message:
        """Returns the message. From then on further changes go into a new `TablesChanged`."""
        if message is self._changes:
            with self._lock:
                self._changes = None
        return message


# -- The effects that a core asks for ----------------------------------------------------------------------------------
#
# They are commands to the core's shell (`StreamLoop`), which executes them and reports the outcome to the core.
#
# | command | the shell | and calls |
# |---|---|---|
# | `Write` | passes what is gathered (or, `again`, the batch that it holds) to the writer | `written`, `write_failed` |
# | `RecordEvents` | applies the events in the store, all or none, and reads the tables back | `recorded` |
# | `RecordCeiling` | records that the slot may be confirmed up to here | `ceiling_recorded` or `ceiling_failed` |
# | `Acknowledge` | records that the generations were taken up; the store thread repeats it until seen | — |
# | `Verify` | checks the lease and reads the tables back from the store | `recorded` or `stop` |
# | `AskPosition` | asks the server for a keepalive | `keepalive` |
# | `Finish` | ends the stream | — |


@dataclass(frozen=True, slots=True)
class Planned:
    """One table's move within a write: the compare-and-set that the destination performs on the table's position."""

    generation: int
    expected: Boundary
    to: Boundary


@dataclass(frozen=True, slots=True)
class Write:
    """Makes everything gathered up to `boundary` durable, for exactly the tables in `moves`. `again`: retries the same
    batch, possibly for fewer tables."""

    boundary: Boundary
    moves: Mapping[TableName, Planned]
    again: bool = False


@dataclass(frozen=True, slots=True)
class RecordEvents:
    events: Mapping[TableName, Event]


@dataclass(frozen=True, slots=True)
class RecordCeiling:
    """Records `boundary` as the ceiling of the slot's confirmation, together with what the stream has seen of the WAL
    before it (`seen`) and the positions at which the destination was seen, as high-water marks (`positions`). `stream`:
    the name under which the store holds the ceiling of this slot."""

    boundary: Boundary
    positions: Mapping[TableName, HighWater] = field(default_factory=dict)
    seen: Seen | None = None
    stream: str = APPLY_CEILING


@dataclass(frozen=True, slots=True)
class Acknowledge:
    generations: Mapping[TableName, int]


@dataclass(frozen=True, slots=True)
class Verify:
    """Checks, after the destination fenced a write, that this worker still holds the lease and which tables the stream
    owns."""


@dataclass(frozen=True, slots=True)
class AskPosition:
    pass


@dataclass(frozen=True, slots=True)
class Finish:
    """Ends the stream for the reason `why`. The stream can be started again."""

    why: str


Command = Write | RecordEvents | RecordCeiling | Acknowledge | Verify | AskPosition | Finish
