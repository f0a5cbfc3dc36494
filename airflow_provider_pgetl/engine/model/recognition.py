"""Whether a source that sends its history again sends the same history.

A source that is put back on the same timeline (an older snapshot of its storage, a backup without an archive) has the
same system identifier and the same timeline, and soon its WAL is as long as it was. Its slots are back at their
positions of that time, so it first sends again what it sent before, as far as the two histories are the same, and then
other transactions, at positions below those that the destination already has. A source that crashed also sends changes
again, because the progress of a slot is not written to disk at once; but what it had sent was on its disk, and is the
same.

So each stream records the last transaction that it has seen before its durable boundary (`Seen`), in memory and in the
store, and the next connection is compared with it. One transaction is enough: WAL is linear, so if the same transaction
committed at the same position, everything before it is the same too. What lies before the position of the slot needs no
comparison: the slot is part of the source, and only pgetl confirms it.

Not every transaction is sent to every connection. If a transaction is open while a table that it has written to is
added to a publication, or removed from it, PostgreSQL decides by what it had decoded before: a connection that begins
later may not receive the transaction. A table that a stream owns has been copied since, when no such transaction was
open. So as long as the server has not been restarted since the transaction was seen, and so cannot have been set back,
only the last transaction with an owned change is required. After a restart the last transaction of any kind is
required: that it is missing then more often means that the source was restored.

A worker that is killed between a write and the record of it in the store leaves positions in the destination that no
record covers. A write ends where a transaction ends, so these positions are checked too: the source must send a
transaction that ends exactly there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn, format_lsn

_OTHER_CAUSE = (
    " (or a publication was altered while that transaction was open, and the server was started again since: then "
    "nothing is missing)"
)


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction, as in its BEGIN message; `commit_time` in microseconds since 2000."""

    commit_lsn: CommitLsn
    xid: int = 0
    commit_time: int = 0

    def __str__(self) -> str:
        return f"{self.xid} at {format_lsn(self.commit_lsn)}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a stream has seen of the WAL before `upto`.

    `last` is the last transaction, None if the stream has seen none; nothing was committed from `quiet_from` up to
    `upto`. `owned` is the last transaction with a change that the stream owned. `server` is the time at which the
    server that sent them had been started (microseconds since 1970, 0 if it is not known).
    """

    upto: Boundary
    quiet_from: Boundary
    last: Transaction | None = None
    owned: Transaction | None = None
    server: int = 0

    def implies(self, other: Seen) -> bool:
        """Whether a history that agrees with this one also agrees with `other`."""
        known = self.last is not None or self.quiet_from <= other.quiet_from
        return self.upto >= other.upto and known and (self.owned is not None or other.owned is None)

    def claim(self, server: int) -> Seen:
        """Returns the part of it that a server which was started at `server` must send again."""
        if server == 0 or server != self.server:
            return self
        return Seen(self.upto, self.upto, self.owned, self.owned, server)


class Recognition:
    """Compares what one connection sends with what was seen before. Its methods take the messages in order, and return
    why this is another history as soon as that is known, else None."""

    def __init__(
        self,
        start: Boundary,
        seen: Collection[Seen],
        ends: Collection[Boundary] = (),
        others: Iterable[Seen] = (),
        server: int = 0,
    ) -> None:
        """`start`: the position of the slot. `seen`: what was seen before this connection, and has to be found again.
        `ends`: where transactions ended of which nothing else is known. `others`: what was seen by streams that check
        it themselves, which may be far ahead: it must be found too, but is not waited for. `server`: when the server
        was started."""
        self._needed = max([start, *(each.upto for each in seen), *ends])
        self._passed = start
        self._open = [each.claim(server) for each in (*seen, *others) if each.upto > start]
        self._ends = {end for end in ends if end > start}
        self._owned = {each.owned for each in self._open}
        self._expected = [each.last for each in self._open if each.last and not start.covers(each.last.commit_lsn)]

    @property
    def complete(self) -> bool:
        """Whether the connection has passed everything that is waited for."""
        return self._passed >= self._needed

    def transaction(self, sent: Transaction) -> str | None:
        if sent in self._expected:
            self._expected = [each for each in self._expected if each != sent]
        elif missed := self._missed(Boundary(sent.commit_lsn + 1)):
            words = f"instead of transaction {missed}, which it sent before, it has transaction {sent}"
            return words + self._other_cause(missed)
        elif any(_was_quiet(each, sent) for each in self._open):
            return f"it has transaction {sent}, where it had none before"
        return self._no_end(Boundary(sent.commit_lsn))

    def committed(self, end: Boundary) -> str | None:
        """Takes the end of a transaction that has been sent."""
        self._ends.discard(end)
        return self.reached(end)

    def reached(self, boundary: Boundary) -> str | None:
        """Takes a boundary before which everything has been sent."""
        missed = self._missed(boundary)
        if missed is not None:
            return f"transaction {missed}, which it sent before, is not there any more" + self._other_cause(missed)
        self._open = [each for each in self._open if each.upto > boundary]
        self._passed = max(self._passed, boundary)
        return self._no_end(boundary)

    def _other_cause(self, missed: Transaction) -> str:
        """Returns the other possible cause for the absence of a transaction without an owned change: a server that was
        restarted need not send it again."""
        return "" if missed in self._owned else _OTHER_CAUSE

    def _no_end(self, before: Boundary) -> str | None:
        lost = [end for end in self._ends if end <= before]
        return f"no transaction ends at {min(lost)} any more, up to where tables were written" if lost else None

    def _missed(self, before: Boundary) -> Transaction | None:
        return next((each for each in self._expected if before.covers(each.commit_lsn)), None)


def _was_quiet(seen: Seen, sent: Transaction) -> bool:
    return not seen.quiet_from.covers(sent.commit_lsn) and seen.upto.covers(sent.commit_lsn)
