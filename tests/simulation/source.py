"""A model of the source: its WAL, the slots that remember it, the walsenders that send it.

As in Postgres
* the next transaction's commit LSN may equal the previous one's end LSN;
* a slot sends everything with a commit LSN at or behind what it was confirmed to;
* a new connection decodes from far below that, and its keepalives say so; one within a transaction says nothing;
* one connection streams a slot at a time, and another session may end it;
* a slot's snapshot holds exactly what committed before its consistent point.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

from airflow_provider_pgetl.engine.changes.batch import Change, Kind
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.tables import Column, PgType, TableName, TableSchema

Row = dict[str, Any]
Rows = dict[tuple[int], Row]
_KEYS = 5
_INT = PgType(23, "int4")
_COLUMNS = tuple(Column(name, _INT, "integer") for name in ("id", "value", "big"))


def schema_of(table: TableName) -> TableSchema:
    return TableSchema(table, int(table.name[1:]), _COLUMNS, ("id",))


class Violation(AssertionError):
    """The simulation has found something that must not be."""


# -- what is sent -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Begin:
    commit_lsn: CommitLsn


@dataclass(frozen=True, slots=True)
class Changed:
    """`change` is None where the table was truncated."""

    table: TableName
    commit_lsn: CommitLsn
    ordinal: int
    change: Change | None


@dataclass(frozen=True, slots=True)
class Commit:
    end: Boundary


@dataclass(frozen=True, slots=True)
class Keepalive:
    position: Boundary


Message = Begin | Changed | Commit | Keepalive


@dataclass(frozen=True, slots=True)
class Transaction:
    commit: int
    end: int
    changes: tuple[Changed, ...]

    def messages(self) -> list[Message]:
        return [Begin(CommitLsn(self.commit)), *self.changes, Commit(Boundary(self.end))]


@dataclass
class History:
    """What a table held, from commit to commit."""

    commits: list[int] = field(default_factory=list)
    versions: list[Rows] = field(default_factory=lambda: [{}])

    @property
    def rows(self) -> Rows:
        return self.versions[-1]

    def at(self, boundary: Boundary) -> Rows:
        """The rows when everything before the boundary had been committed."""
        return self.versions[bisect_left(self.commits, boundary.lsn)]

    def changed(self, since: Boundary, until: Boundary) -> bool:
        """Whether a transaction at or behind `since` and before `until` changed the table."""
        return bisect_left(self.commits, since.lsn) < bisect_left(self.commits, until.lsn)

    def cuts(self, boundary: Boundary) -> tuple[int, float]:
        """The boundaries B at which the table is as at `boundary`: after the first, up to the second."""
        index = bisect_left(self.commits, boundary.lsn)
        before = self.commits[index - 1] if index else -1
        return before, self.commits[index] if index < len(self.commits) else float("inf")


# -- slots and walsenders ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Slot:
    """`made` is the consistent point."""

    name: str
    made: int
    confirmed: int
    restart: int
    lost: bool = False
    active: Walsender | None = None


class Away(PgetlError):
    """A server cannot be reached, or its answer was lost."""

    def __init__(self, server: str, what: str) -> None:
        kind = ErrorKind.STORE if server == "store" else ErrorKind.CONNECTION
        super().__init__(kind, f"{server} is away: {what}")


class SlotLost(PgetlError):
    def __init__(self, name: str) -> None:
        super().__init__(ErrorKind.SLOT_LOST, f"{name} is lost")


@dataclass(eq=False, repr=False)
class Walsender:
    """One connection that streams one slot."""

    source: Source
    slot: Slot
    start: Boundary
    owner: str
    alive: bool = True
    asked: bool = False
    sent: int = 0
    told: int = 0
    _next: int = 0
    _queue: deque[Message] = field(default_factory=deque)
    _open: int | None = None

    def __str__(self) -> str:
        return f"from {self.start.lsn}"

    __repr__ = __str__

    def __post_init__(self) -> None:
        self.sent = self.slot.restart
        self._next = bisect_left(self.source.commits, self.start.lsn)

    def receive(self, random: Random) -> Message | None:
        """The next message, if there is any."""
        self._expect_alive()
        if self._queue:
            if self._open is not None and random.random() < 0.05:
                return Keepalive(Boundary(random.choice([self.sent, self._open])))
            return self._take()
        waiting = self._next < len(self.source.wal)
        if random.random() < (0.15 if waiting else 0.3) or (self.asked and not waiting):
            return self._keepalive(random, waiting)
        if waiting:
            transaction = self.source.wal[self._next]
            self._next += 1
            if transaction.changes or random.random() < 0.3:
                self._open = transaction.commit
                self._queue.extend(transaction.messages())
                return self._take()
            self.sent = transaction.end
        return None

    def _take(self) -> Message:
        message = self._queue.popleft()
        if isinstance(message, Commit):
            self.sent, self._open = message.end.lsn, None
        return message

    def _keepalive(self, random: Random, waiting: bool) -> Keepalive:
        """Everything before its position has been sent: never more is said."""
        if waiting:
            self.sent = max(self.sent, random.choice([self.sent, self.source.wal[self._next].commit]))
        else:
            self.sent, self.asked = self.source.lsn, False
        return Keepalive(Boundary(self.sent))

    def confirm(self, boundary: Boundary) -> None:
        """The client says that everything before is durable."""
        self._expect_alive()
        if boundary.lsn < self.told:
            raise Violation(f"the feedback of {self.slot.name} goes back from {self.told} to {boundary.lsn}")
        if boundary.lsn < self.slot.confirmed:
            raise Violation(f"{self.slot.name} is acknowledged below its confirmation: {boundary.lsn}")
        if boundary.lsn > self.source.lsn:
            raise Violation(f"{self.slot.name} is acknowledged beyond the end of the WAL")
        self.told = self.slot.confirmed = boundary.lsn

    def close(self) -> None:
        self.alive = False
        if self.slot.active is self:
            self.slot.active = None

    def _expect_alive(self) -> None:
        if not self.alive:
            raise Away("source", f"the stream of {self.slot.name} was ended")


# -- the server -------------------------------------------------------------------------------------------------------


class Source:
    def __init__(self, tables: list[TableName], *, sends_whole_rows: bool = False) -> None:
        self.lsn = 100
        self._sends_whole_rows = sends_whole_rows
        self.wal: list[Transaction] = []
        self.commits: list[int] = []
        self.tables = {table: History() for table in tables}
        self.slots: dict[str, Slot] = {}
        self._values = 0

    # -- writing

    def transact(self, random: Random) -> str:
        """Somebody's transaction: of our tables, of others', or one that is rolled back."""
        kind = random.random()
        if kind < 0.15:
            self.lsn += random.choice([1, 7, 40])
            return f"other work; the WAL ends at {self.lsn}"
        commit = self.lsn + random.choice([0, 0, 1, 6])
        end = commit + random.choice([1, 8])
        changes = self._changes(random, CommitLsn(commit)) if kind < 0.9 else ()
        self.wal.append(Transaction(commit, end, changes))
        self.commits.append(commit)
        self.lsn = end
        return f"transaction {commit}..{end} of {', '.join(sorted({str(c.table) for c in changes})) or 'others'}"

    def _changes(self, random: Random, commit: CommitLsn) -> tuple[Changed, ...]:
        tables = random.sample(sorted(self.tables), random.randint(1, min(3, len(self.tables))))
        working = {table: dict(self.tables[table].rows) for table in tables}
        changes = []
        for ordinal in range(random.randint(1, 4)):
            table = tables[ordinal % len(tables)]
            changes.append(Changed(table, commit, ordinal, self._change(random, working[table], commit, ordinal)))
        for table in {change.table for change in changes}:
            history = self.tables[table]
            history.commits.append(commit)
            history.versions.append(working[table])
        return tuple(changes)

    def _change(self, random: Random, rows: Rows, commit: CommitLsn, ordinal: int) -> Change | None:
        """Change the rows; None stands for a truncate."""
        if random.random() < 0.04:
            rows.clear()
            return None
        free = [(key,) for key in range(_KEYS) if (key,) not in rows]
        if not rows or (free and random.random() < 0.35):
            row = {"id": random.choice(free)[0], "value": self._value(), "big": self._value()}
            rows[row["id"],] = row
            return Change(Kind.INSERT, commit, ordinal, None, row)
        key = random.choice(sorted(rows))
        if random.random() < 0.2:
            del rows[key]
            return Change(Kind.DELETE, commit, ordinal, {"id": key[0]}, None)
        return self._update(random, rows, key, free, commit, ordinal)

    def _update(
        self, random: Random, rows: Rows, key: tuple[int], free: list[tuple[int]], commit: CommitLsn, ordinal: int
    ) -> Change:
        """Now and then to another key; what is large is sent only if it has changed."""
        target = random.choice(free) if free and random.random() < 0.3 else key
        sent: Row = {"id": target[0], "value": self._value()}
        if random.random() < 0.3:
            sent["big"] = self._value()
        rows[target] = {**rows.pop(key), **sent}
        new = rows[target] if self._sends_whole_rows else sent
        return Change(Kind.UPDATE, commit, ordinal, {"id": key[0]} if target != key else None, new)

    def _value(self) -> int:
        self._values += 1
        return self._values

    # -- slots

    def create_slot(self, name: str, random: Random) -> Boundary:
        """The consistent point: nothing is open, everything before it is visible to the snapshot."""
        if name in self.slots:
            raise PgetlError(ErrorKind.SLOT_IN_USE, f"the slot {name} exists already")
        self.lsn += random.choice([0, 0, 3])
        self.slots[name] = Slot(name, self.lsn, self.lsn, max(0, self.lsn - random.choice([0, 30])))
        return Boundary(self.lsn)

    def drop_slot(self, name: str) -> None:
        """Of a slot that somebody streams as well: the stream ends with it."""
        slot = self.slots.pop(name, None)
        if slot is not None and slot.active is not None:
            slot.active.close()

    def terminate(self, name: str) -> None:
        """End whoever streams the slot."""
        slot = self.slots.get(name)
        if slot is not None and slot.active is not None:
            slot.active.close()

    def hang_up(self, owner: str) -> None:
        """The server has noticed that a client is gone."""
        for slot in self.slots.values():
            if slot.active is not None and slot.active.owner == owner:
                slot.active.close()

    def connect(self, name: str, owner: str) -> Walsender:
        slot = self.slots.get(name)
        if slot is None or slot.lost:
            raise SlotLost(name)
        if slot.active is not None:
            raise PgetlError(ErrorKind.SLOT_IN_USE, f"{name} is in use")
        slot.active = Walsender(self, slot, Boundary(slot.confirmed), owner)
        slot.active.told = slot.confirmed
        return slot.active
