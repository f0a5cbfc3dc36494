"""Positions in the WAL, and the comparisons that are allowed between them.

Three kinds of LSN look alike and must never be mixed:

* a **commit LSN** (`CommitLsn`) names a transaction: pgoutput's BEGIN.final_lsn, which equals COMMIT.commit_lsn;
* a **boundary** (`Boundary`) lies *between* transactions: a COMMIT's end_lsn, a slot's consistent point, or the
  position of a keepalive. "Everything before boundary B" means exactly ``commit_lsn < B``, because the next
  transaction's commit LSN may equal the previous one's end LSN;
* a **position** of a change is `(commit_lsn, ordinal)`: a WAL LSN alone is not unique, rows of one COPY share it.

Therefore boundaries are ordered only among themselves, and `Boundary.covers` compares one with a commit LSN.
"""

from __future__ import annotations

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
