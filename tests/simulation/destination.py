"""The real destination in memory, watched: what must never be asked of it, or happen in it, is noticed at once.

Some tables cannot be written: `poison` holds (table, generation). Whoever is rolled back has been mended.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from airflow_provider_pgetl.engine.changes.batch import Change, EventBatch, Step, TablePosition, Target, Truncate
from airflow_provider_pgetl.engine.destinations.fencing import TableMetadata
from airflow_provider_pgetl.engine.destinations.memory import MemoryDestination, MemoryStorage
from airflow_provider_pgetl.engine.destinations.protocol import AtomicCopy, CopyFormat, Positions, RangeCopy
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.postgres import copy_format as postgres_copy_format
from tests.simulation.threads import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")
_KEPT = ("tables", "holders", "epochs", "records", "staging")
"""What a backup of the storage holds."""


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


class PlainClient(AtomicCopy, RangeCopy):
    """A process's way to a destination that stores no positions and has no fences: what it is given it puts, by key, as
    often as it comes."""

    name = "memory"

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._server = world.destination
        self._real = MemoryDestination(world.destination.storage)
        self._missing: set[TableName] = set()

    def _ask(self, what: str, do: Callable[[], T], *, reads: bool = False) -> T:
        return self._world.call(self._process, "destination", what, do, do, reads=reads)

    def shutdown(self) -> None:
        """Nothing to let go of."""

    def drop_table_for_copy(self, schema: TableSchema) -> None:
        raise AssertionError("copies are atomic here")

    def write_table_rows(self, schema: TableSchema, rows: pa.RecordBatch) -> None:
        raise AssertionError("copies bring ranges here")

    def begin_copy(self, target: Target, attempt: int) -> None:
        def begin() -> None:
            self._real.begin_copy(target, attempt)
            self._server.begun[target.schema.table] = (target.generation, attempt)

        self._ask(f"begin {target.schema.table} by attempt {attempt}", begin)

    def copy_format(self, schema: TableSchema) -> CopyFormat:
        return self._real.copy_format(schema)

    def write_range(self, target: Target, attempt: int, number: int, blocks: Iterable[bytes]) -> int:
        kept = tuple(blocks)
        return self._ask(
            f"stage range {number} of {target.schema.table} by attempt {attempt}",
            lambda: self._real.write_range(target, attempt, number, kept),
        )

    def write_again(self, target: Target, attempt: int, number: int, restores: int) -> None:
        """Rows of which none may be stored, unless the ledger has forgotten the range since."""
        strange = [postgres_copy_format.write((b"99", b"0", b"0"))]

        def write() -> None:
            if self._world.restores == restores:
                self._real.write_range(target, attempt, number, strange)

        self._ask(f"stage range {number} of {target.schema.table} by attempt {attempt} again", write)

    def finish_copy(self, target: Target, attempt: int, position: Boundary, ranges: int | None = None) -> None:
        def finish() -> None:
            table = target.schema.table
            before = self._server.storage.tables.get(table)
            self._real.finish_copy(target, attempt, position, ranges)
            published = self._server.storage.tables.get(table) is not before
            if published and self._server.begun[table] != (target.generation, attempt):
                self._world.violate(f"the superseded copy attempt {attempt} of {table} has published")

        self._ask(f"publish {target.schema.table} by attempt {attempt} at {position}", finish)

    def abort_copy(self, target: Target, attempt: int) -> None:
        self._ask(f"abort {target.schema.table} by {attempt}", lambda: self._real.abort_copy(target, attempt))

    def write_events(self, batch: EventBatch) -> None:
        kept = replace(batch, steps=tuple(batch.steps))
        self._ask(f"write {_moves(batch)}", lambda: self._write(kept))

    def _write(self, batch: EventBatch) -> None:
        self._refuse_poison(batch)
        for step in batch.steps:
            put(self._server.storage.tables[step.schema.table].rows, step)

    def _refuse_poison(self, batch: EventBatch) -> None:
        for step in batch.steps:
            table = step.schema.table
            if (table, batch.moves[table].target.generation) in self._server.poison:
                raise PgetlError(ErrorKind.VALUE, f"{table} holds what cannot be written", table=str(table))


class Client(PlainClient, Positions):
    """The same for one with positions and fences."""

    def claim(self, pipeline: str, epoch: int) -> None:
        def claim() -> None:
            self._real.claim(pipeline, epoch)
            self._server.epoch = max(self._server.epoch, epoch)

        self._ask(f"claim epoch {epoch}", claim)

    def positions(self, pipeline: str) -> Mapping[TableName, TablePosition]:
        return self._ask("positions", lambda: self._real.positions(pipeline), reads=True)

    def latest_attempt(self, pipeline: str) -> int:
        return self._ask("latest attempt", lambda: self._real.latest_attempt(pipeline), reads=True)

    def adopt(self, target: Target) -> None:
        self._ask(f"adopt {target.schema.table} as {target.generation}", lambda: self._real.adopt(target))

    def _write(self, batch: EventBatch) -> None:
        self._refuse_poison(batch)
        before = dict(self._server.storage.records)
        self._real.write_events(batch)
        if before != self._server.storage.records:
            self._expect_right(batch, before)
        missed = self._real.misses()
        for table in missed.keys() - self._missing:
            if self._world.is_whole(table, before.get((batch.pipeline, table))):
                self._world.violate(f"changes of {table} hit no row: {missed[table]}")
        self._missing |= missed.keys()

    def _expect_right(self, batch: EventBatch, before: Mapping[tuple[str, TableName], TableMetadata]) -> None:
        """Whoever was superseded has changed nothing."""
        if batch.epoch < self._server.epoch:
            self._world.violate(f"epoch {batch.epoch} has written after epoch {self._server.epoch} had claimed")
        for table, move in batch.moves.items():
            known, asked = before[batch.pipeline, table].generation, move.target.generation
            if known != asked:
                self._world.violate(f"generation {asked} of {table} has written after generation {known} had begun")


def put(rows: dict[Any, Any], step: Step) -> None:
    """The change without a care for what is there; whole rows come to the same whatever was there before."""
    if isinstance(step, Truncate):
        rows.clear()
        return
    for change in step.changes():
        put_change(rows, change)


def put_change(rows: dict[Any, Any], change: Change) -> None:
    known_by = change.old or change.new or {}
    rows.pop((known_by["id"],), None)
    if change.new is not None:
        rows[change.new["id"],] = dict(change.new)


def _moves(batch: EventBatch) -> str:
    return ", ".join(f"{table} {move.expected}->{move.to}" for table, move in batch.moves.items())
