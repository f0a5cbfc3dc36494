"""How far a stream has come: what it has received, and below which boundary everything it owns is durable.

The one rule of acknowledgement lives here: **`durable` is a boundary below which nothing that this stream owns is
outside the destination.** It rises when a write is done, and, while nothing owned is waiting or under way, with every
boundary received, so that an idle database on a busy server never holds back WAL. It never falls, though the
positions a server reports may, after a reconnect.

With it goes what was seen of the WAL before it, by which a source is recognized that sends it again.

Time, tables and phases are not known here.
"""

from __future__ import annotations

from airflow_provider_pgetl.engine.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.recognition import Seen, Transaction


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
