"""Whether a source that sends its history once more sends the same history.

A source that is put back on the same timeline (an older snapshot of its storage, a backup without an archive) has the
same system identifier and the same timeline, and soon its WAL is as long as it was. Its slots stand where they stood
then, so it sends again what it had sent before, as far as that is the same; and then other transactions, at positions
below those that the destination has already. A source that crashed sends again as well, for a slot's progress is not
written to disk at once; but what it had sent was on its disk, and is the same.

So each stream remembers the last transaction that it has seen before its durable boundary (`Seen`), in memory and in
the store, and the next connection is held against it. One transaction is enough: WAL is one line, so where the same
transaction committed at the same position, everything before it is the same too. What lies before the position of the
slot is vouched for by the slot: only we confirm it, and it lies in the source.

Not every transaction is sent to every connection. Of one that was open while a table it had written to was added to a
publication, or taken out, PostgreSQL decides by what it had decoded before: a connection that begins later may not get
it. A table that a stream owns has been copied since, when no such transaction was open. So while the server has not
been started again since it was seen, and cannot have gone back, only the last transaction with an owned change is
asked for. Once it has, that the others are missing tells more often of a restored source.

A worker that is killed between a write and its note of it leaves positions in the destination that no note covers. A
write ends where a transaction ends, so the source is held to these too: it must send a transaction that ends exactly
there.
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
    """A transaction as its BEGIN names it; `commit_time` in microseconds since 2000."""

    commit_lsn: CommitLsn
    xid: int = 0
    commit_time: int = 0

    def __str__(self) -> str:
        return f"{self.xid} at {format_lsn(self.commit_lsn)}"


@dataclass(frozen=True, slots=True)
class Seen:
    """What a stream has seen of the WAL before `upto`: its last transaction, where it has met any, and that nothing
    was committed from `quiet_from` on; the last one with a change that it owned; when the server that sent it had been
    started (microseconds since 1970, 0 if that is not known)."""

    upto: Boundary
    quiet_from: Boundary
    last: Transaction | None = None
    owned: Transaction | None = None
    server: int = 0

    def implies(self, other: Seen) -> bool:
        """Whether a history that agrees with this agrees with the other too."""
        known = self.last is not None or self.quiet_from <= other.quiet_from
        return self.upto >= other.upto and known and (self.owned is not None or other.owned is None)

    def claim(self, server: int) -> Seen:
        """What of it must be found on a server that was started then."""
        if server == 0 or server != self.server:
            return self
        return Seen(self.upto, self.upto, self.owned, self.owned, server)


class Recognition:
    """One connection's. Told what comes, in order; answers, once it is known, why this is another history."""

    def __init__(
        self,
        start: Boundary,
        seen: Collection[Seen],
        ends: Collection[Boundary] = (),
        others: Iterable[Seen] = (),
        server: int = 0,
    ) -> None:
        """`start`: where the slot stands; `server`: when the server was started. `ends`: where transactions ended of
        which nothing else is known. `others`: what streams have seen that are held to it themselves, which may be far
        ahead: it must be there too, but is not waited for."""
        self._needed = max([start, *(each.upto for each in seen), *ends])
        self._passed = start
        self._open = [each.claim(server) for each in (*seen, *others) if each.upto > start]
        self._ends = {end for end in ends if end > start}
        self._owned = {each.owned for each in self._open}
        self._expected = [each.last for each in self._open if each.last and not start.covers(each.last.commit_lsn)]

    @property
    def complete(self) -> bool:
        """Whether all that is waited for has been passed."""
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
        """A transaction that ended at `end` has been sent."""
        self._ends.discard(end)
        return self.reached(end)

    def reached(self, boundary: Boundary) -> str | None:
        """Everything before `boundary` has been sent."""
        missed = self._missed(boundary)
        if missed is not None:
            return f"transaction {missed}, which it sent before, is not there any more" + self._other_cause(missed)
        self._open = [each for each in self._open if each.upto > boundary]
        self._passed = max(self._passed, boundary)
        return self._no_end(boundary)

    def _other_cause(self, missed: Transaction) -> str:
        """Of a transaction without an owned change, which a server that was started again need not send again."""
        return "" if missed in self._owned else _OTHER_CAUSE

    def _no_end(self, before: Boundary) -> str | None:
        lost = [end for end in self._ends if end <= before]
        return f"no transaction ends at {min(lost)} any more, up to where tables were written" if lost else None

    def _missed(self, before: Boundary) -> Transaction | None:
        return next((each for each in self._expected if before.covers(each.commit_lsn)), None)


def _was_quiet(seen: Seen, sent: Transaction) -> bool:
    return not seen.quiet_from.covers(sent.commit_lsn) and seen.upto.covers(sent.commit_lsn)
