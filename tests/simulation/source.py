"""A model of the source: its WAL, the slots that remember it, the walsenders that send it in pgoutput's own bytes.

As in Postgres
* the next transaction's commit LSN may equal the previous one's end LSN;
* a slot sends everything with a commit LSN at or behind what it was confirmed to;
* a new connection decodes from far below that, and its keepalives say so; one within a transaction says nothing, and
  may even lie beyond its commit;
* a RELATION comes before the first row of a table on a connection, and again when the table has changed;
* a row is sent if its table was published when it was written, and is known by the replica identity of that time;
* one connection streams a slot at a time, and another session may end it;
* a slot's snapshot holds exactly what committed before its consistent point;
* what a client confirms may reach the server late, and is lost with the connection;
* a server that crashes has all its WAL, but its slots stand where the last checkpoint wrote them down;
* one that shuts down ends nobody who streams before everything is confirmed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from airflow_provider_pgetl.engine.changes.batch import Change, Kind
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import START, Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.tables import Identity, TableName, TableSchema
from airflow_provider_pgetl.engine.wal.pgoutput import Keepalive
from tests.engine.wal.control_messages import encode
from tests.simulation.history import (
    CHECKPOINT,
    KEYS,
    UNIT,
    Changed,
    History,
    Row,
    Rows,
    Transaction,
    Violation,
    relation,
    schema_of,
    told_of,
)

# -- slots and walsenders ---------------------------------------------------------------------------------------------


@dataclass(eq=False)
class Slot:
    """`made` is the consistent point, `saved` what a checkpoint has written down of `confirmed`. `back_again`: of a
    backup that was put back; the pipeline may have given it up meanwhile."""

    name: str
    made: int
    confirmed: int
    restart: int
    saved: int = 0
    lost: bool = False
    back_again: bool = False
    active: Walsender | None = None


@dataclass(eq=False, repr=False)
class Walsender:
    """One connection that streams one slot. `owner` is the process that it serves."""

    source: Source
    slot: Slot
    owner: object
    start: int
    alive: bool = True
    asked: bool = False
    sent: int = 0
    told: int = 0
    awaits: bool = False
    _said: int | None = None
    _next: int = 0
    _queue: deque[bytes] = field(default_factory=deque)
    _commit: Transaction | None = None
    _described: dict[TableName, TableSchema] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sent, self.told = self.slot.restart, self.slot.confirmed
        self._next = bisect_left(self.source.commits, self.start)

    @property
    def has_more(self) -> bool:
        """Whether the client would hear of something at once."""
        ending = self.source.stopping and not self.awaits
        return not self.alive or bool(self._queue) or self.asked or ending or self._next < len(self.source.wal)

    def take(self, random: Random) -> bytes | None:
        """The next message, if there is any."""
        self.hear()
        if self._queue:
            if random.random() < 0.05:
                assert self._commit is not None
                return self._say(random.choice([self.sent, self._commit.commit, self._commit.end]))
            return self._take()
        waiting = self._next < len(self.source.wal)
        if self.source.stopping and not waiting:
            return self._last_word()
        if random.random() < (0.15 if waiting else 0.1) or (self.asked and not waiting):
            return self._keepalive(random, waiting)
        if waiting:
            transaction = self.source.wal[self._next]
            self._next += 1
            if any(changed.published for changed in transaction.changes) or transaction.xid % 3 == 0:
                self._commit = transaction
                self._queue.extend(self._messages(transaction))
                return self._take()
            self.sent = transaction.end
        return None

    def _last_word(self) -> bytes | None:
        """A server that shuts down waits until all is confirmed, and asks for that again after each answer."""
        self.sent = max(self.sent, self.source.lsn)
        if self.slot.confirmed >= self.sent:
            self.close()
            return None
        if self.awaits:
            return None
        self.awaits = True
        return encode(Keepalive(Boundary(self.sent), 0, reply_requested=True))

    def _messages(self, transaction: Transaction) -> Iterator[bytes]:
        yield transaction.begin
        for changed in transaction.changes:
            if not changed.published:
                continue
            if self._described.get(changed.table) != changed.schema:
                self._described[changed.table] = changed.schema
                yield relation(changed.schema)
            yield changed.payload
        yield transaction.committed

    def _take(self) -> bytes:
        payload = self._queue.popleft()
        if not self._queue:
            assert self._commit is not None
            self.sent, self._commit = self._commit.end, None
        return payload

    def _keepalive(self, random: Random, waiting: bool) -> bytes:
        """Everything before its position has been sent: never more is said."""
        if waiting:
            self.sent = max(self.sent, random.choice([self.sent, self.source.wal[self._next].commit]))
        else:
            self.sent, self.asked = max(self.sent, self.source.lsn), False
        return self._say(self.sent)

    def _say(self, position: int) -> bytes:
        return encode(Keepalive(Boundary(position), 0, reply_requested=False))

    def confirm(self, boundary: Boundary) -> None:
        """The client says that everything before is durable."""
        violate = self.source.violate
        self.awaits = False
        if boundary == START:
            return
        if boundary.lsn < self.told:
            violate(f"the feedback of {self.slot.name} goes back from {self.told} to {boundary.lsn}")
        if boundary.lsn < self.slot.confirmed:
            violate(f"{self.slot.name} is acknowledged below its confirmation: {boundary.lsn}")
        if boundary.lsn > self.source.lsn:
            violate(f"{self.slot.name} is acknowledged beyond the end of the WAL")
        self.told = self._said = boundary.lsn

    def hear(self) -> None:
        """Take in what the client has said."""
        if self._said is not None and self.alive:
            self.slot.confirmed, self._said = max(self.slot.confirmed, self._said), None

    def close(self) -> None:
        self.alive = False
        if self.slot.active is self:
            self.slot.active = None


@dataclass(frozen=True, slots=True)
class Backup:
    """How far the source had come; `held` says of each table how many commits and files."""

    lsn: int
    transactions: int
    held: Mapping[TableName, tuple[int, int]]
    slots: list[Slot]


# -- the server -------------------------------------------------------------------------------------------------------


class Source:
    def __init__(self, tables: list[TableName], *, sends_whole_rows: bool = False, truncates: float = 0.04) -> None:
        self.lsn = 100 * UNIT
        self._sends_whole_rows = sends_whole_rows
        self._truncates = truncates
        self.wal: list[Transaction] = []
        self.commits: list[int] = []
        self.schemas = {table: schema_of(table) for table in tables}
        self.tables = {table: History() for table in tables}
        self.memberships: dict[TableName, int] = {}
        self._members = 30_000
        for table in tables:
            self.publish(table)
        self.slots: dict[str, Slot] = {}
        self.deciding: dict[str, object] = {}
        self.stopping = False
        self.timeline = 1
        self.started = 1
        self.went_back = False
        self.switch_points: tuple[tuple[int, Boundary], ...] = ()
        self._backup: Backup | None = None
        self._values = 0

    def violate(self, what: str) -> None:
        raise Violation(what)

    # -- writing

    def transact(self, random: Random, now: float) -> str:
        """Somebody's transaction: of our tables, of others', or one that is rolled back."""
        kind = random.random()
        if kind < 0.15:
            self.lsn += random.choice([1, 7, 40]) * UNIT
            return f"other work; the WAL ends at {Boundary(self.lsn)}"
        commit = self.lsn + random.choice([0, 0, 1, 6]) * UNIT
        end = commit + random.choice([1, 8]) * UNIT
        changes = self._changes(random, CommitLsn(commit)) if kind < 0.9 else ()
        self._commit(commit, end, now, changes)
        tables = ", ".join(sorted({str(changed.table) for changed in changes})) or "others"
        return f"transaction {Boundary(commit)}..{Boundary(end)} of {tables}"

    def _commit(self, commit: int, end: int, now: float, changes: tuple[Changed, ...]) -> int:
        self.wal.append(Transaction(commit, end, now, 700 + len(self.wal), changes))
        self.commits.append(commit)
        self.lsn = end
        if len(self.wal) % CHECKPOINT == 0:
            self.checkpoint()
        return commit

    def _changes(self, random: Random, commit: CommitLsn) -> tuple[Changed, ...]:
        tables = random.sample(sorted(self.tables), random.randint(1, min(3, len(self.tables))))
        working = {table: dict(self.tables[table].rows) for table in tables}
        changes = []
        for ordinal in range(1, random.randint(2, 5)):
            table = tables[ordinal % len(tables)]
            change = self._change(random, working[table], self.schemas[table].key, commit, ordinal)
            changes.append(Changed(self.schemas[table], change, table in self.memberships))
            if change is None:
                self.tables[table].files += 1
        for table in sorted({change.table for change in changes}):
            history = self.tables[table]
            history.commits.append(commit)
            history.versions.append(working[table])
        return tuple(changes)

    def _change(
        self, random: Random, rows: Rows, told: tuple[str, ...], commit: CommitLsn, ordinal: int
    ) -> Change | None:
        """Change the rows; None stands for a truncate. `told` are the columns of the replica identity."""
        if random.random() < self._truncates:
            rows.clear()
            return None
        free = [key for number in range(KEYS) if (key := (b"%d" % number,)) not in rows]
        if not rows or (free and random.random() < 0.35):
            row: Row = {"id": random.choice(free)[0], "value": self._value(), "big": self._value()}
            rows[row["id"] or b"",] = row
            return Change(Kind.INSERT, commit, ordinal, None, row)
        key = random.choice(sorted(rows))
        if random.random() < 0.2:
            return Change(Kind.DELETE, commit, ordinal, told_of(rows.pop(key), told), None)
        return self._update(random, rows, key, free, told, commit, ordinal)

    def _update(
        self,
        random: Random,
        rows: Rows,
        key: tuple[bytes],
        free: list[tuple[bytes]],
        told: tuple[str, ...],
        commit: CommitLsn,
        ordinal: int,
    ) -> Change:
        """Now and then to another key; what is large is sent only if it has changed."""
        target = random.choice(free) if free and random.random() < 0.3 else key
        sent: Row = {"id": target[0], "value": self._value()}
        if random.random() < 0.3:
            sent["big"] = self._value()
        elif rows[key]["big"] is None:
            sent["big"] = None
        before = told_of(rows[key], told)
        rows[target] = {**rows.pop(key), **sent}
        new = rows[target] if self._sends_whole_rows else sent
        return Change(Kind.UPDATE, commit, ordinal, before if before != told_of(rows[target], told) else None, new)

    def _value(self) -> bytes:
        self._values += 1
        return b"%d" % self._values

    # -- being altered

    def publish(self, table: TableName) -> None:
        """A new row of pg_publication_rel, unless it is published."""
        if table not in self.memberships:
            self._members += 1
            self.memberships[table] = self._members

    def withdraw(self, table: TableName) -> None:
        """Nothing of what is committed from now on is sent."""
        self.memberships.pop(table, None)

    def alter_identity(self, table: TableName) -> None:
        """From the primary key to an index on another column, or back."""
        schema = self.schemas[table]
        by_value = schema.key == ("id",)
        identity: Identity = "index" if by_value else "default"
        self.schemas[table] = replace(schema, identity=identity, key=("value",) if by_value else ("id",))

    def exchange_column(self, table: TableName, now: float) -> None:
        """Its large column is dropped, and another of the same name and type is added: no row says so."""
        schema, history = self.schemas[table], self.tables[table]
        *others, large = schema.columns
        again = replace(large, number=large.number + 1)
        self.schemas[table] = replace(schema, columns=(*others, again))
        history.commits.append(self._commit(self.lsn, self.lsn + UNIT, now, ()))
        history.versions.append({key: {**row, "big": None} for key, row in history.rows.items()})

    # -- going back

    def checkpoint(self) -> None:
        for slot in self.slots.values():
            slot.saved = slot.confirmed

    @property
    def waits_for(self) -> list[Walsender]:
        """Whom a server that shuts down waits for."""
        return [slot.active for slot in self.slots.values() if slot.active is not None] if self.stopping else []

    def shut_down(self) -> None:
        """Once nobody streams any more; what was confirmed is written down."""
        self.stopping = False
        self.started += 1
        self.checkpoint()
        self.deciding.clear()

    def crash(self) -> None:
        """And start again."""
        for slot in self.slots.values():
            if slot.active is not None:
                slot.active.close()
            slot.confirmed = slot.saved
        self.started += 1
        self.deciding.clear()

    def back_up(self) -> None:
        """Its storage, slots and all."""
        held = {table: (len(history.commits), history.files) for table, history in self.tables.items()}
        slots = [replace(slot, active=None) for slot in self.slots.values()]
        self._backup = Backup(self.lsn, len(self.wal), held, slots)

    def set_back(self, *, promoted: bool) -> bool:
        """To what was backed up, if anything was. `promoted`: it is a standby that had come so far, in a timeline of
        its own from now on; else it is the storage as it was then. Other transactions follow, by the same numbers."""
        backup, self._backup = self._backup, None
        if backup is None:
            return False
        for slot in self.slots.values():
            if slot.active is not None:
                slot.active.close()
        self.lsn = backup.lsn
        self.started += 1
        self.went_back = True
        self.deciding.clear()
        del self.wal[backup.transactions :], self.commits[backup.transactions :]
        for table, (commits, files) in backup.held.items():
            history = self.tables[table]
            del history.commits[commits:], history.versions[commits + 1 :]
            history.files = files + (1000 if promoted else 0)
        self.slots = {slot.name: replace(slot, back_again=True) for slot in backup.slots}
        if promoted:
            self.switch_points = (*self.switch_points, (self.timeline, Boundary(self.lsn)))
            self.timeline += 1
        return True

    # -- slots

    def create_slot(self, name: str, random: Random) -> Boundary:
        """The consistent point: nothing is open, everything before it is visible to the snapshot."""
        if name in self.slots:
            raise PgetlError(ErrorKind.SLOT_IN_USE, f"the slot {name} exists already")
        self.lsn += random.choice([0, 0, 3]) * UNIT
        self.slots[name] = Slot(name, self.lsn, self.lsn, max(0, self.lsn - random.choice([0, 30]) * UNIT), self.lsn)
        return Boundary(self.lsn)

    def drop_slot(self, name: str) -> bool:
        """Of a slot that somebody streams as well: the stream ends with it."""
        slot = self.slots.pop(name, None)
        if slot is not None and slot.active is not None:
            slot.active.close()
        return slot is not None

    def terminate(self, name: str) -> None:
        """End whoever streams the slot."""
        slot = self.slots.get(name)
        if slot is not None and slot.active is not None:
            slot.active.close()

    def hang_up(self, owner: object) -> None:
        """The server has noticed that a client is gone."""
        for slot in self.slots.values():
            if slot.active is not None and slot.active.owner is owner:
                slot.active.close()
        self.deciding = {name: holder for name, holder in self.deciding.items() if holder is not owner}

    def connect(self, name: str, owner: object, start: Boundary) -> Walsender:
        slot = self.slots.get(name)
        if slot is None or slot.lost:
            raise PgetlError(ErrorKind.SLOT_LOST, f"{name} is lost")
        if slot.active is not None:
            raise PgetlError(ErrorKind.SLOT_IN_USE, f"{name} is in use")
        slot.active = Walsender(self, slot, owner, max(start.lsn, slot.confirmed))
        return slot.active
