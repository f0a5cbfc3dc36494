"""The real destination in memory, watched: what must never be asked of it, or happen in it, is noticed at once.

Some tables cannot be written: `poison` holds (table, generation). Whoever is rolled back has been mended.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_pgetl.engine.changes.batch import Change, EventBatch, Step, TablePosition, Target, Truncate
from airflow_provider_pgetl.engine.destinations.fencing import Record
from airflow_provider_pgetl.engine.destinations.memory import MemoryDestination, MemoryStorage
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.tables import TableName, TableSchema
from tests.simulation.source import Row, Violation

_KEPT = ("tables", "holders", "epochs", "records", "staging")
"""What a backup of the storage holds."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes of one table, as a batch has them."""

    schema: TableSchema
    of_table: Sequence[Change]

    def __len__(self) -> int:
        return len(self.of_table)

    def changes(self) -> Iterator[Change]:
        return iter(self.of_table)


@dataclass
class Watched:
    """The server's side. `epoch` is the latest that claimed, `begun` each table's latest copy attempt."""

    has_positions: bool = True
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    poison: set[tuple[TableName, int]] = field(default_factory=set)
    epoch: int = 0
    begun: dict[TableName, tuple[int, int]] = field(default_factory=dict)
    backup: tuple[MemoryStorage, int, dict[TableName, tuple[int, int]]] | None = None

    def rows(self, table: TableName) -> Mapping[Hashable, Mapping[str, Any]]:
        held = self.storage.tables.get(table)
        return held.rows if held is not None else {}

    def back_up(self) -> None:
        held = self.storage
        kept = MemoryStorage(**{name: deepcopy(getattr(held, name)) for name in _KEPT})
        self.backup = kept, self.epoch, dict(self.begun)

    def restore(self) -> bool:
        """Back to what was backed up, if anything was; the same server, with the past in it."""
        if self.backup is None:
            return False
        (kept, self.epoch, self.begun), self.backup = self.backup, None
        held = self.storage
        for name in _KEPT:
            setattr(held, name, getattr(kept, name))
        return True

    def open(self) -> WatchedDestination:
        return WatchedDestination(self) if self.has_positions else PlainDestination(self)


class WatchedDestination:
    """A client. What it answers is what the real one answers."""

    def __init__(self, server: Watched) -> None:
        self._server = server
        self._real = MemoryDestination(server.storage)

    def claim(self, pipeline: str, epoch: int) -> None:
        self._real.claim(pipeline, epoch)
        self._server.epoch = max(self._server.epoch, epoch)

    def positions(self, pipeline: str) -> Mapping[TableName, TablePosition]:
        return self._real.positions(pipeline)

    def adopt(self, target: Target) -> None:
        self._real.adopt(target)

    def write_events(self, batch: EventBatch) -> None:
        self._refuse_poison(batch)
        before = dict(self._server.storage.records)
        self._real.write_events(batch)
        if before != self._server.storage.records:
            self._expect_right(batch, before)
        if self._real.misses():
            raise Violation(f"changes hit no row: {dict(self._real.misses())}")

    def _expect_right(self, batch: EventBatch, before: Mapping[tuple[str, TableName], Record]) -> None:
        """Whoever was superseded has changed nothing."""
        if batch.epoch < self._server.epoch:
            raise Violation(f"epoch {batch.epoch} has written after epoch {self._server.epoch} had claimed")
        for table, move in batch.moves.items():
            known, asked = before[batch.pipeline, table].generation, move.target.generation
            if known != asked:
                raise Violation(f"generation {asked} of {table} has written after generation {known} had begun")

    def _refuse_poison(self, batch: EventBatch) -> None:
        for step in batch.steps:
            table = step.schema.table
            if (table, batch.moves[table].target.generation) in self._server.poison:
                raise PgetlError(ErrorKind.VALUE, f"{table} holds what cannot be written", table=str(table))

    def begin_copy(self, target: Target, attempt: int) -> None:
        self._real.begin_copy(target, attempt)
        self._server.begun[target.schema.table] = (target.generation, attempt)

    def stage(self, target: Target, attempt: int, number: int, rows: Sequence[Row]) -> None:
        self._real.stage(target, attempt, number, rows)

    def finish_copy(self, target: Target, attempt: int, position: Boundary) -> None:
        table = target.schema.table
        before = self._server.storage.tables.get(table)
        self._real.finish_copy(target, attempt, position)
        published = self._server.storage.tables.get(table) is not before
        if published and self._server.begun[table] != (target.generation, attempt):
            raise Violation(f"the superseded copy attempt {attempt} of {table} has published")

    def abort_copy(self, target: Target, attempt: int) -> None:
        self._real.abort_copy(target, attempt)


class PlainDestination(WatchedDestination):
    """One that stores no positions and has no fences: what it is given it puts, by key, as often as it comes."""

    def claim(self, pipeline: str, epoch: int) -> None:
        raise AssertionError("a plain destination is not claimed")

    def positions(self, pipeline: str) -> Mapping[TableName, TablePosition]:
        raise AssertionError("a plain destination has no positions")

    def adopt(self, target: Target) -> None:
        raise AssertionError("a plain destination adopts nothing")

    def write_events(self, batch: EventBatch) -> None:
        self._refuse_poison(batch)
        for step in batch.steps:
            put(self._server.storage.tables[step.schema.table].rows, step)


def put(rows: dict[Any, Any], step: Step) -> None:
    """The change without a care for what is there; whole rows come to the same whatever was there before."""
    if isinstance(step, Truncate):
        rows.clear()
        return
    for change in step.changes():
        known_by = change.old or change.new or {}
        rows.pop((known_by["id"],), None)
        if change.new is not None:
            rows[change.new["id"],] = dict(change.new)


def of_change(schema: TableSchema, commit: CommitLsn, ordinal: int, change: Change | None) -> Rows | Truncate:
    """One step of a batch."""
    return Truncate(schema, commit, ordinal) if change is None else Rows(schema, (change,))
