"""Where we are in the WAL, and the one comparison that is allowed.

Three kinds of LSN look alike and must never be mixed:

* a **commit LSN** (`CommitLsn`) names a transaction: pgoutput's BEGIN.final_lsn, which equals COMMIT.commit_lsn;
* a **boundary** (`Boundary`) lies *between* transactions: a COMMIT's end_lsn, a slot's consistent point, or the
  position of a keepalive. "Everything before boundary B" means exactly ``commit_lsn < B``, because the next
  transaction's commit LSN may equal the previous one's end LSN;
* a **position** of a change is `(commit_lsn, ordinal)`: a WAL LSN alone is not unique, rows of one COPY share it.

`Boundary` therefore offers `covers`, and ordering only among boundaries.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType

CommitLsn = NewType("CommitLsn", int)


@dataclass(frozen=True, slots=True, order=True)
class Boundary:
    """A point between transactions. Ordered among its kind; compared with a commit LSN only by `covers`."""

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
    """All changes of a table that came to the destination after `since`, up to `upto`, were these, and none is counted
    twice. Where that cannot be said any more, counting begins anew: with another `since`.

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
    """How far a destination was seen to have a table, of the data of which copy attempt. A later attempt begins anew:
    whether it has come further than an earlier one means nothing. `counted`: what was counted up to there; it goes with
    the mark, and says nothing about which of two is higher."""

    attempt: int = 0
    position: Boundary = START
    counted: Counted | None = field(default=None, compare=False)

    def of(self, attempt: int | None) -> Boundary:
        """The mark of that attempt's data; START if it says nothing of it."""
        return self.position if attempt is not None and attempt == self.attempt else START


NO_MARK = HighWater()


def format_lsn(lsn: int) -> str:
    """Postgres' own spelling, for instance ``16/B374D848``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)
