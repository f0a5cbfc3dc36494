"""Positions in the WAL, and the comparisons that are allowed between them; the history of a source in which they are
valid, and whether it is still the same.

Three kinds of LSN look alike and must never be mixed:

* a **commit LSN** (`CommitLsn`) names a transaction: pgoutput's BEGIN.final_lsn, which equals COMMIT.commit_lsn;
* a **boundary** (`Boundary`) lies *between* transactions: a COMMIT's end_lsn, a slot's consistent point, or the
  position of a keepalive. "Everything before boundary B" means exactly ``commit_lsn < B``, because the next
  transaction's commit LSN may equal the previous one's end LSN;
* a **position** of a change is `(commit_lsn, ordinal)`: a WAL LSN alone is not unique, rows of one COPY share it.

Therefore boundaries are ordered only among themselves, and `Boundary.covers` compares one with a commit LSN.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import NewType

CommitLsn = NewType("CommitLsn", int)


@dataclass(frozen=True, slots=True, order=True)
class Boundary:
    """A point between transactions. Ordered among boundaries; compared with a commit LSN only by `covers`."""

    lsn: int

    def covers(self, commit_lsn: CommitLsn) -> bool:
        """Whether the transaction lies before this boundary."""
        return commit_lsn < self.lsn

    def __str__(self) -> str:
        return format_lsn(self.lsn)

    @classmethod
    def parse(cls, text: str) -> Boundary:
        return cls(parse_lsn(text))


START = Boundary(0)


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Changes by their kind: rows, and TRUNCATE commands."""

    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(
            self.inserts + other.inserts,
            self.updates + other.updates,
            self.deletes + other.deletes,
            self.truncates + other.truncates,
        )

    def __sub__(self, other: RowCounts) -> RowCounts:
        return RowCounts(
            self.inserts - other.inserts,
            self.updates - other.updates,
            self.deletes - other.deletes,
            self.truncates - other.truncates,
        )


@dataclass(frozen=True, slots=True)
class Counted:
    """The changes of a table that came to the destination after `since`, up to `upto`: all of them, and each counted
    once. Where that can no longer be guaranteed, counting begins anew, with another `since`.

    `commit_time`: of the last transaction before `upto` with changes that the stream has applied, in microseconds since
    2000; None if there was none since counting began.
    """

    since: Boundary
    upto: Boundary
    rows: RowCounts = RowCounts()
    commit_time: int | None = None

    @classmethod
    def beginning(cls, at: Boundary) -> Counted:
        return cls(at, at)

    def extended(self, upto: Boundary, rows: RowCounts, commit_time: int | None) -> Counted:
        return Counted(self.since, upto, self.rows + rows, commit_time or self.commit_time)


@dataclass(frozen=True, slots=True, order=True)
class HighWater:
    """The furthest position at which the destination was seen to have a table, for the data of one copy attempt. A
    later attempt begins anew: its position cannot be compared with that of an earlier attempt. `counted`: the changes
    counted up to the position; it is stored with the mark, and is not compared."""

    attempt: int = 0
    position: Boundary = START
    counted: Counted | None = field(default=None, compare=False)

    def of(self, attempt: int | None) -> Boundary:
        """Returns the mark for that attempt's data; START if the mark is of another attempt."""
        return self.position if attempt is not None and attempt == self.attempt else START


NO_MARK = HighWater()


def format_lsn(lsn: int) -> str:
    """Returns the LSN in Postgres' own spelling, for instance ``16/B374D848``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


# -- Lineage: the history of a source in which positions are valid, and whether it continues. --------------------------
#
# A WAL position is only a number. START_REPLICATION accepts a position of another cluster without an error and then
# sends nothing, so before a position is used, the lineage with which it was recorded is compared with the present one.


@dataclass(frozen=True, slots=True)
class Lineage:
    """The history of a source in which positions are valid. Two lineages have no order; they only differ or not.

    `switch_points` are the earlier timelines, oldest first, each with the position at which it was left. `publication`
    is the OID of the publication, 0 while there is none. `ended` says why the source is known not to continue this
    lineage, where that was found from what the source sends: no later query of the source could show it.
    """

    system: str
    timeline: int
    switch_points: tuple[tuple[int, Boundary], ...]
    database: int
    publication: int
    ended: str | None = None


def compare(
    recorded: Lineage, present: Lineage, furthest: Boundary, wal_end: Boundary, confirmed: Boundary = START
) -> str | None:
    """Returns why positions recorded under `recorded` are no longer valid, or None if they still are.

    `furthest` is the furthest position that was ever recorded, `wal_end` is the end of the present WAL. A failover that
    lost nothing that was seen makes no difference: the new timeline branched at or after `furthest`, or the slot was
    confirmed on it, up to `confirmed`, by a stream that was connected while the standby was promoted.
    """
    return (
        _another_place(recorded, present)
        or recorded.ended
        or _another_branch(recorded, present, furthest, confirmed)
        or _shorter(furthest, wal_end)
    )


def _another_place(recorded: Lineage, present: Lineage) -> str | None:
    if recorded.system != present.system:
        return f"the source is another cluster: system identifier {present.system}, not {recorded.system}"
    if recorded.database != present.database:
        return f"the source is another database: its OID is {present.database}, not {recorded.database}"
    if present.publication == 0:
        return "the publication was dropped"
    if recorded.publication != present.publication:
        return f"the publication was dropped and made again: OID {present.publication}, not {recorded.publication}"
    return None


def _another_branch(recorded: Lineage, present: Lineage, furthest: Boundary, confirmed: Boundary) -> str | None:
    if present.timeline < recorded.timeline:
        return f"the source went back from timeline {recorded.timeline} to {present.timeline}: it was restored"
    left = dict(present.switch_points)
    for timeline, switched in recorded.switch_points:
        if left.get(timeline) != switched:
            return f"the source followed another branch: it did not leave timeline {timeline} at {switched}"
    if present.timeline == recorded.timeline:
        return None
    branched = left.get(recorded.timeline)
    if branched is None:
        return f"the source's timeline {present.timeline} does not descend from timeline {recorded.timeline}"
    if branched < furthest and confirmed <= branched:
        return f"timeline {present.timeline} branched at {branched}, before {furthest} which was already seen"
    return None


def _shorter(furthest: Boundary, wal_end: Boundary) -> str | None:
    if wal_end < furthest:
        return f"the source's WAL ends at {wal_end}, before {furthest} which was already seen: it was restored"
    return None


# -- Whether a source that sends its history again sends the same history. ---------------------------------------------
#
# A source that is put back on the same timeline (an older snapshot of its storage, a backup without an archive) has the
# same system identifier and the same timeline, and soon its WAL is as long as it was. Its slots are back at their
# positions of that time, so it first sends again what it sent before, as far as the two histories are the same, and
# then other transactions, at positions below those that the destination already has. A source that crashed also sends
# changes again, because the progress of a slot is not written to disk at once; but what it had sent was on its disk,
# and is the same.
#
# So each stream records the last transaction that it has seen before its durable boundary (`Seen`), in memory and in
# the store, and the next connection is compared with it. One transaction is enough: WAL is linear, so if the same
# transaction committed at the same position, everything before it is the same too. What lies before the position of the
# slot needs no comparison: the slot is part of the source, and only pgetl confirms it.
#
# Not every transaction is sent to every connection. If a transaction is open while a table that it has written to is
# added to a publication, or removed from it, PostgreSQL decides by what it had decoded before: a connection that begins
# later may not receive the transaction. A table that a stream owns has been copied since, when no such transaction was
# open. So as long as the server has not been restarted since the transaction was seen, and so cannot have been set
# back, only the last transaction with an owned change is required. After a restart the last transaction of any kind is
# required: that it is missing then more often means that the source was restored.
#
# A worker that is killed between a write and the record of it in the store leaves positions in the destination that no
# record covers. A write ends where a transaction ends, so these positions are checked too: the source must send a
# transaction that ends exactly there.

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
