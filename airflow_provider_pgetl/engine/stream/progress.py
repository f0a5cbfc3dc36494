"""How far a stream has come: what it has received, and below which boundary everything it owns is durable.

The one rule of acknowledgement lives here: **`durable` is a boundary below which nothing that this stream owns is
outside the destination.** It rises when a write is done, and, while nothing owned is waiting or under way, with every
boundary received, so that an idle database on a busy server never holds back WAL. It never falls, though the
positions a server reports may, after a reconnect.

With it goes what was seen of the WAL before it, by which a source is recognized that sends it again.

Time, tables and phases are not known here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_pgetl.engine.model.phases import Event
from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.recognition import Seen, Transaction
from airflow_provider_pgetl.engine.model.tables import TableName


class Progress:
    """Fed with the outline of the stream; holds no change itself.

    `position` is the last boundary received; `transaction` the commit LSN of the transaction that is being received.
    `pending`: completed transactions with owned changes wait to be written. `in_flight`: the boundary being written.
    """

    def __init__(self, start: Boundary, before: Seen | None = None, server: int = 0) -> None:
        """`before`: what was seen earlier, if it reaches up to `start` or beyond. `server`: see `Seen`."""
        self._server = server
        self.position = start
        self.durable = start
        self.transaction: CommitLsn | None = None
        self.pending = False
        self.in_flight: Boundary | None = None
        self._touched = False
        joined = before is not None and before.upto >= start
        self._last = before.last if before is not None and joined else None
        self._quiet_from = before.quiet_from if before is not None and joined else start
        self._owned = before.owned if before is not None and joined else None
        self._open: Transaction | None = None
        self._owned_end = self._quiet_from
        self._taken = self._durable_before = (self._quiet_from, self._last, self._owned)

    @property
    def seen(self) -> Seen:
        """What was seen before `durable`."""
        return Seen(self.durable, *self._durable_before, self._server)

    @property
    def seen_in_flight(self) -> Seen | None:
        """The same of what is being written, should it turn out to be durable."""
        return None if self.in_flight is None else Seen(self.in_flight, *self._taken, self._server)

    @property
    def at_rest(self) -> bool:
        """All that was received is durable, and no transaction is open."""
        return self.transaction is None and not self.pending and self.in_flight is None

    def begin(self, transaction: Transaction) -> None:
        self.transaction = transaction.commit_lsn
        self._open = transaction
        self._touched = False

    def touch(self) -> None:
        """The open transaction has an owned change."""
        self._touched = True

    def commit(self, end: Boundary) -> None:
        self.transaction = None
        self._last, self._quiet_from = self._open, end
        if self._touched:
            self.pending, self._owned, self._owned_end = True, self._open, end
        self._advance(end)

    def keepalive(self, position: Boundary) -> None:
        """Within a transaction a keepalive's position says nothing about what has been received."""
        if self.transaction is None:
            self._advance(position)

    def take(self) -> Boundary:
        """What is pending goes to be written; the boundary that it makes durable: the end of the last transaction with
        an owned change. So a position in the destination is one that the source can be held to: what is behind it may
        be of a table that was being published, or left, and is not sent by every connection."""
        self.in_flight = self._owned_end
        self._taken = (self._owned_end, self._owned, self._owned)
        self.pending = False
        return self.in_flight

    def written(self) -> None:
        if self.in_flight is not None:
            self.durable = max(self.durable, self.in_flight)
            self._durable_before = self._taken
        self.in_flight = None
        self._settle()

    def _advance(self, boundary: Boundary) -> None:
        self.position = max(self.position, boundary)
        self._settle()

    def _settle(self) -> None:
        """An open transaction lies wholly behind `position`, so it holds nothing back."""
        if not self.pending and self.in_flight is None:
            self.durable = max(self.durable, self.position)
            self._durable_before = (self._quiet_from, self._last, self._owned)


# -- What a stream has told the store, until it is read back. ----------------------------------------------------------


@dataclass(slots=True)
class Outbox:
    """Events sent to the store and not read back yet, each with the time to send it again.

    `together`: what went in one record is taken or refused as one. So when one of its tables is seen to have changed,
    all are open again; news of other tables says nothing about what is still on its way.
    """

    events: dict[TableName, Event] = field(default_factory=dict)
    due: dict[TableName, float] = field(default_factory=dict)
    together: dict[TableName, frozenset[TableName]] = field(default_factory=dict)

    def wants(self, table: TableName, event: Event, now: float) -> bool:
        return self.events.get(table) != event or self.due[table] <= now

    def sent(self, events: Mapping[TableName, Event], again_at: float) -> None:
        self.events.update(events)
        self.due.update(dict.fromkeys(events, again_at))
        self.together.update(dict.fromkeys(events, frozenset(events)))

    def settle(self, changed: frozenset[TableName]) -> None:
        if not changed:
            return
        for table in [table for table in self.events if not changed.isdisjoint(self.together[table])]:
            del self.events[table], self.due[table], self.together[table]


# -- For how long a stream's oldest change has waited to be durable. Pure. ---------------------------------------------
#
# Both ends are read from the source's clock, as this machine's may differ from it: when a change was committed, and
# what time the source said it was when it was last heard. In between this machine's monotonic clock, `now`, goes on.
#
# Commits close to each other share an entry, which is as old as the first and waits for the last. The longer the queue,
# the more share one, so that a stream that is held up for days remembers little, and its age is hardly less exact.

_GRAIN_SECONDS = 0.1
_MOST = 1000


class CommitLag:
    """Fed with commits in their order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Boundary, float]] = deque()
        self._grain = _GRAIN_SECONDS
        self._ahead: float | None = None

    def heard(self, at: float, now: float) -> None:
        """The source's clock reads `at`."""
        self._ahead = at - now

    def committed(self, end: Boundary, at: float, now: float) -> None:
        self._ahead = at - now if self._ahead is None else max(self._ahead, at - now)
        if self._waiting and at - self._waiting[-1][1] < self._grain:
            last, since = self._waiting[-1]
            self._waiting[-1] = (max(last, end), since)  # after a reconnect commits come a second time
            return
        self._waiting.append((end, at))
        if len(self._waiting) > _MOST:
            self._grow_coarser()

    def oldest(self, durable: Boundary, now: float) -> float:
        """The age in seconds of the oldest commit beyond `durable`; 0 if there is none."""
        while self._waiting and self._waiting[0][0] <= durable:
            self._waiting.popleft()
        if not self._waiting:
            self._grain = _GRAIN_SECONDS
            return 0.0
        return max(0.0, now + (self._ahead or 0.0) - self._waiting[0][1])

    def _grow_coarser(self) -> None:
        self._grain *= 2
        entries = list(self._waiting)
        pairs = (entries[number : number + 2] for number in range(0, len(entries), 2))
        self._waiting = deque((pair[-1][0], pair[0][1]) for pair in pairs)
