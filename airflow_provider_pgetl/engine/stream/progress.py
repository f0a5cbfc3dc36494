"""The progress of a stream: what it has received, and the boundary below which every change that it owns is durable.

This module holds the one rule of acknowledgement: **`durable` is a boundary below which nothing that this stream owns
is outside the destination.** It rises when a write is done, and, while no owned change waits or is being written, with
every boundary received, so that an idle database on a busy server never holds back WAL. It never falls, although the
positions that a server reports may fall after a reconnect.

Each durable boundary comes with what was seen of the WAL before it (`Seen`), by which the source is recognized when it
sends the same WAL again.

This module does not deal with time, tables or phases. `Outbox`, `CommitLag` and `Measuring`, below, keep three other
records of a stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_pgetl.engine.model.phases import Event
from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn, Seen, Transaction
from airflow_provider_pgetl.engine.model.reports import StreamProgressed
from airflow_provider_pgetl.engine.model.results import Measurement
from airflow_provider_pgetl.engine.model.tables import TableName


class Progress:
    """The boundaries of one connection. It is fed with transactions and keepalives; it holds no changes.

    `position` is the last boundary received; `transaction` the commit LSN of the transaction that is being received.
    `pending`: whether completed transactions with owned changes wait to be written. `in_flight`: the boundary that is
    being written.
    """

    def __init__(self, start: Boundary, before: Seen | None = None, server: int = 0) -> None:
        """`before`: what was seen earlier; used only if it reaches `start` or beyond. `server`: see `Seen`."""
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
        """What was seen before the boundary being written, in case the write turns out to be durable; None without a
        write."""
        return None if self.in_flight is None else Seen(self.in_flight, *self._taken, self._server)

    @property
    def at_rest(self) -> bool:
        """Whether everything received is durable and no transaction is open."""
        return self.transaction is None and not self.pending and self.in_flight is None

    def begin(self, transaction: Transaction) -> None:
        self.transaction = transaction.commit_lsn
        self._open = transaction
        self._touched = False

    def touch(self) -> None:
        """The open transaction has an owned change."""
        self._touched = True

    def commit(self, end: Boundary, *, has_changes: bool = True) -> None:
        """`has_changes`: not every connection is sent a transaction without any, so it is not noted as seen."""
        self.transaction = None
        if has_changes:
            self._last, self._quiet_from = self._open, end
        if self._touched:
            self.pending, self._owned, self._owned_end = True, self._open, end
        self._advance(end)

    def keepalive(self, position: Boundary) -> None:
        """Advances to `position`, except within a transaction, where it says nothing about what has been received."""
        if self.transaction is None:
            self._advance(position)

    def take(self) -> Boundary:
        """Marks what is pending as in flight. Returns the boundary that the write makes durable: the end of the last
        transaction with an owned change. So every position in the destination is one that the source must send again:
        a transaction after it may have changed a table that was just being added to a publication or taken out of it,
        and such a transaction is not sent to every connection."""
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
        """Raises `durable` to `position` if nothing waits to be written. An open transaction does not prevent that, as
        it lies wholly after `position`."""
        if not self.pending and self.in_flight is None:
            self.durable = max(self.durable, self.position)
            self._durable_before = (self._quiet_from, self._last, self._owned)


# -- Events sent to the store, until they are read back. ---------------------------------------------------------------


@dataclass(slots=True)
class Outbox:
    """Events that were sent to the store and not read back yet, each with the time at which it is sent again (`due`).

    `together`: per table the tables whose events went in the same record. The store accepts or refuses a record as a
    whole. So when one of its tables is seen to have changed, all its events are settled; a change of other tables says
    nothing about an event that is still on its way.
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


# -- Commit lag: how long a stream's oldest commit has waited to be durable. Pure. -------------------------------------
#
# Both ends are read from the source's clock, as this machine's clock may differ from it: the time of the commit, and
# the source's time in its last message. Since that message, time is counted by this machine's monotonic clock, `now`.
#
# Commits close to each other share an entry, which is as old as the first and waits for the last. The longer the queue,
# the more commits share an entry, so that a stream that is held up for days keeps few entries, and its lag is hardly
# less exact.

_GRAIN_SECONDS = 0.1
_MOST = 1000


class CommitLag:
    """The age of the oldest commit that is not durable yet. It is fed with commits in order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Boundary, float]] = deque()
        self._grain = _GRAIN_SECONDS
        self._ahead: float | None = None

    def heard(self, at: float, now: float) -> None:
        """Notes that the source's clock reads `at` (in seconds)."""
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
        """Returns the age in seconds of the oldest commit beyond `durable`; 0 if there is none."""
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


# -- Measurements of a stream, joined until they are recorded. Pure. ---------------------------------------------------


class Measuring:
    """Joins what is measured, and returns it when it is to be recorded: every `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._joined = Measurement()
        self._due: float | None = None
        self._counted = (0, 0)

    def take(self, report: StreamProgressed, retained: int, memory: int, now: float) -> Measurement | None:
        """Adds a report, the bytes of WAL that the stream's slot retains and the bytes of memory that the process has;
        returns everything since the last measurement that was returned, if the next one is due. A report counts the
        changes and batches of one stream; a stream that succeeds it begins with none."""
        counted = (report.changes, report.batches)
        before = self._counted if counted >= self._counted else (0, 0)
        self._counted = counted
        changes, batches = (max(0, after - earlier) for after, earlier in zip(counted, before, strict=True))
        measured = Measurement(report.lag_bytes, report.lag_seconds, changes, batches, retained, memory)
        self._joined = self._joined.joined(measured)
        self._due = now + self._seconds if self._due is None else self._due
        if now < self._due:
            return None
        taken, self._joined, self._due = self._joined, Measurement(), now + self._seconds
        return taken
