"""A process's ways to the modelled source: the shell's `SourceServer`, and the ranges of its copies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from airflow_provider_pgetl.engine.copy.ranges import Endpoints, RangeOutcome, RangeTask
from airflow_provider_pgetl.engine.copy.runners import Outcomes, Wanted, bundled, run_in_threads
from airflow_provider_pgetl.engine.model.errors import ErrorData, ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import START, Boundary, Lineage
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.postgres import copy_format
from airflow_provider_pgetl.engine.runtime.threads import persistently
from airflow_provider_pgetl.engine.source.catalog import PublishedTable
from airflow_provider_pgetl.engine.source.drift import ColumnForm, WatchedColumn, WatchedSource, WatchedTable
from airflow_provider_pgetl.engine.source.hidden_changes import Look
from airflow_provider_pgetl.engine.source.published import Namespace, Publication
from airflow_provider_pgetl.engine.source.range_reading import ExportedSnapshot, Rewritten
from airflow_provider_pgetl.engine.source.relations import Leaf, ReplicaIdentity
from airflow_provider_pgetl.engine.source.server import Present
from airflow_provider_pgetl.engine.source.slots import CreatedSlot, SlotName
from airflow_provider_pgetl.engine.source.slots import Slot as SlotView
from airflow_provider_pgetl.engine.state.decisions import LATEST
from tests.simulation.history import Away
from tests.simulation.source import Slot, Walsender
from tests.simulation.threads import Process, SimRuntime
from tests.simulation.world import Snapshot

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")
BLOCK = 8192
_SLOT_PATIENCE = 10.0


class SourceClient:
    """A process's way to the source, over a network."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process

    def ask(self, what: str, do: Callable[[], T], *, reads: bool = False) -> T:
        return self._world.call(self._process, "source", what, do, do, reads=reads)

    @contextmanager
    def session(self, worker: str) -> Iterator[SimSession]:
        del worker
        yield SimSession(self, self._world, self._process, self._world.source.started)

    def stream(
        self,
        worker: str,
        slot: str,
        publications: tuple[str, ...],
        *,
        binary: bool,
        start: Boundary = START,
        accept: Callable[[Present], None] | None = None,
    ) -> SimStream:
        del worker, publications, binary
        if accept is not None:
            accept(SimSession(self, self._world, self._process, self._world.source.started).lineage(""))
        connect = self._world.source.connect
        sender = self.ask(f"stream {slot}", lambda: connect(slot, self._process, start), reads=True)
        return SimStream(self._world, self._process, sender)

    @contextmanager
    def exported_snapshot(self, attempt: int, slot: str, patience: float) -> Iterator[ExportedSnapshot]:
        del attempt, patience
        snapshot = self.ask(f"make {slot}", lambda: self._snapshot_of(slot))
        self._world.snapshots[slot] = snapshot
        yield ExportedSnapshot(CreatedSlot(slot, snapshot.boundary, slot), lambda: None)

    def _snapshot_of(self, slot: str) -> Snapshot:
        """Makes the slot. The catalog is of the same moment as the rows."""
        source = self._world.source
        created = source.create_slot(slot, self._world.random)
        files = {table: history.files for table, history in source.tables.items()}
        return Snapshot(created, files, dict(source.schemas), dict(source.memberships))

    def read_published(
        self,
        attempt: int,
        snapshot: str | None,
        publications: Sequence[str],
        tables: Sequence[TableName],
        refuse: Callable[[TableName, PgetlError], None],
    ) -> tuple[PublishedTable, ...]:
        del attempt, publications
        seen = self.ask("tables", lambda: self._world.snapshots.get(snapshot or ""), reads=True)
        if seen is None:
            raise PgetlError(ErrorKind.CONNECTION, f"The snapshot of {snapshot} is gone.")
        for table in set(tables) - seen.memberships.keys():
            message, remedy = f"{table} is not published.", "Add it to the publication."
            refuse(table, PgetlError(ErrorKind.SCHEMA, message, remedy=remedy, table=str(table)))
        return tuple(
            PublishedTable(seen.schemas[t], 1, seen.memberships[t], None, (leaf_of(seen.schemas[t].relation, t),))
            for t in tables
            if t in seen.memberships
        )

    def drop_group_slot(self, attempt: int, slot: str) -> None:
        del attempt
        SimSession(self, self._world, self._process, self._world.source.started).drop_slot(slot)


def watched(schema: TableSchema) -> WatchedTable:
    columns = tuple(
        WatchedColumn(column.name, ColumnForm(column.type.oid, column.modifier, column.number), "")
        for column in schema.columns
    )
    return WatchedTable(schema.relation, schema.table, Namespace(2200), False, identity_of(schema), columns)


def identity_of(schema: TableSchema) -> ReplicaIdentity:
    return ReplicaIdentity(schema.identity, schema.key, ("id",))


def leaf_of(relation: int, table: TableName) -> Leaf:
    return Leaf(table, relation, relation, 2, 2 * BLOCK)


@dataclass(frozen=True, slots=True)
class SimSession:
    """`started`: the server's start in which it was opened, and with which it ends."""

    client: SourceClient
    world: World
    process: Process
    started: int

    def _ask(self, what: str, do: Callable[[], T], *, reads: bool = False) -> T:
        def asked() -> T:
            if self.world.source.started != self.started:
                raise PgetlError(ErrorKind.CONNECTION, "The session has ended with its server.")
            return do()

        return self.client.ask(what, asked, reads=reads)

    def list_slots(self) -> Mapping[SlotName, SlotView]:
        slots = self._ask("slots", lambda: [_view(slot) for slot in self.world.source.slots.values()], reads=True)
        named = ((SlotName.parse(slot.name), slot) for slot in slots)
        return {name: slot for name, slot in named if name is not None}

    def find_slot(self, name: str) -> SlotView | None:
        def find() -> SlotView | None:
            slot = self.world.source.slots.get(name)
            return None if slot is None else _view(slot)

        return self._ask(f"slot {name}", find, reads=True)

    def release_slot(self, name: str) -> None:
        self._ask(f"end who streams {name}", lambda: self.world.source.terminate(name))

    def drop_slot(self, name: str, *, terminate: bool = False) -> bool:
        deadline = self.world.now + _SLOT_PATIENCE
        while True:
            dropped = self._ask(f"drop {name}", lambda: self._drop(name, terminate))
            if dropped is not None:
                return dropped
            if self.world.now >= deadline:
                raise PgetlError(ErrorKind.SLOT_IN_USE, f"{name} is in use")
            self.world.block(self.process, lambda: False, 0.5)

    def _drop(self, name: str, terminate: bool) -> bool | None:
        slot = self.world.source.slots.get(name)
        if slot is not None and slot.active is not None and not terminate:
            return None
        self.world.expect_not_needed(name)
        return self.world.source.drop_slot(name)

    def create_slot(self, name: str, *, failover: bool = False) -> CreatedSlot:
        del failover
        point = self._ask(f"make {name}", lambda: self.world.source.create_slot(name, self.world.random))
        return CreatedSlot(name, point, None)

    @contextmanager
    def deciding(self, name: str) -> Iterator[None]:
        locks = self.world.source.deciding
        self.world.block(self.process, lambda: name not in locks, 30.0)
        if name in locks:
            raise PgetlError(ErrorKind.SLOT_IN_USE, f"another decides upon {name}")
        locks[name] = self.process
        try:
            yield
        finally:
            if not self.process.dead and self.world.source.started == self.started:
                self.world.source.deciding.pop(name, None)

    def flushed_position(self) -> Boundary:
        return self._ask("end of the WAL", lambda: Boundary(self.world.source.lsn), reads=True)

    def inserted_position(self) -> Boundary:
        return self.flushed_position()

    def lineage(self, publication: str) -> Present:
        del publication
        return self._ask("lineage", self._lineage, reads=True)

    def _lineage(self) -> Present:
        source = self.world.source
        lineage = Lineage("7", source.timeline, source.switch_points, 5, 1)
        return Present(lineage, Boundary(source.lsn), server=source.started)

    def publish(self, tables: Sequence[TableName]) -> None:
        """What is missing of them in the publication, which is ours."""
        missing = [table for table in tables if table not in self.world.source.memberships]
        if missing:
            self._ask("publish", lambda: [self.world.source.publish(table) for table in missing])

    def publications(self, names: Sequence[str]) -> Sequence[Publication]:
        del names
        return self._ask("publications", self.world.publications, reads=True)

    def look(self, relations: Sequence[int]) -> Look:
        """No table is ever altered here."""
        del relations
        return Look(LATEST, frozenset(), 1 << 30, {})

    def watched(
        self, publications: Sequence[str], relations: Sequence[int], tables: Collection[TableName]
    ) -> WatchedSource:
        del publications, relations, tables

        def look() -> WatchedSource:
            found = [watched(schema) for schema in self.world.source.schemas.values()]
            return WatchedSource(self.world.publications(), {table.oid: table for table in found})

        return self._ask("tables", look, reads=True)


class SimStream:
    """One connection that streams one slot."""

    sender_timeout: float | None = 60.0
    described_since: Boundary | None = None
    sends_empty = False

    def __init__(self, world: World, process: Process, sender: Walsender) -> None:
        self._world = world
        self._process = process
        self._sender = sender
        self._woken = False
        self._confirmed = START

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if not self._process.dead:
            self._sender.hear()
            self._sender.close()

    @property
    def confirmed(self) -> Boundary:
        return self._confirmed

    def receive(self, timeout: float) -> list[bytes]:
        world, sender = self._world, self._sender
        world.block(self._process, lambda: self._woken or sender.has_more, timeout)
        self._woken = False
        self._expect_open()
        payloads: list[bytes] = []
        for _ in range(world.random.randint(1, 8)):
            payload = sender.take(world.random)
            if payload is None:
                break
            payloads.append(payload)
        return payloads

    def wake(self) -> None:
        self._woken = True

    def send_feedback(self, boundary: Boundary, *, reply_requested: bool = False) -> None:
        self._process.expect_alive()
        self._expect_open()
        if boundary < self._confirmed:
            self._world.violate(f"feedback of {self._sender.slot.name} falls from {self._confirmed} to {boundary}")
        self._confirmed = boundary
        self._sender.confirm(boundary)
        if self._world.calm or self._world.random.random() < 0.7:
            self._sender.hear()
        self._sender.asked = self._sender.asked or reply_requested
        self._world.note(f"acknowledges {self._sender.slot.name} up to {boundary}")

    def _expect_open(self) -> None:
        if not self._sender.alive or self._world.is_away("source"):
            self._sender.close()
            raise Away("source", f"the stream of {self._sender.slot.name} was ended")


class Ranges:
    """A `RangeRunner` whose executors read the modelled snapshot."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._runtime = SimRuntime(world, process)

    def run(self, endpoints: Endpoints, tasks: Sequence[RangeTask], wanted: Wanted) -> Outcomes:
        stopped = self._runtime.flag()
        return run_in_threads(
            lambda bundle: (self._move(endpoints, task, stopped.is_set) for task in bundle),
            bundled(tasks, 2),
            wanted,
            2,
            stopped.set,
            self._runtime,
        )

    def _move(self, endpoints: Endpoints, task: RangeTask, stopped: Callable[[], bool]) -> RangeOutcome:
        try:
            rows = persistently(lambda: self._once(endpoints, task), stopped, endpoints.patience, self._runtime)
        except Rewritten:
            return RangeOutcome(task.table, task.number, rewritten=True)
        except PgetlError as error:
            return RangeOutcome(task.table, task.number, failure=ErrorData.of(error))
        return RangeOutcome(task.table, task.number, rows)

    def _once(self, endpoints: Endpoints, task: RangeTask) -> int:
        """A range may come twice; the second time the ledger has it, whatever it brings, unless that was restored."""
        client = SourceClient(self._world, self._process)
        rows = client.ask(f"range {task.number} of {task.table}", lambda: self._read(endpoints, task), reads=True)
        destination = self._world.open_destination(self._process)
        restores = self._world.restores
        stored = destination.write_range(task.target, endpoints.attempt, task.number, rows)
        if self._world.chance(0.2):
            destination.write_again(task.target, endpoints.attempt, task.number, restores)
        return stored

    def _read(self, endpoints: Endpoints, task: RangeTask) -> list[bytes]:
        if endpoints.snapshot not in self._world.snapshots:
            raise PgetlError(
                ErrorKind.COPY_DIED, f"the snapshot of {endpoints.snapshot} is gone", table=str(task.table)
            )
        snapshot = self._world.snapshots[endpoints.snapshot]
        history = self._world.source.tables[task.table]
        if history.files != snapshot.files[task.table]:
            raise Rewritten(f"{task.table} has another file")
        rows = history.at(snapshot.boundary)
        return [
            copy_format.write([row[name] for name in task.source.names])
            for (key,), row in sorted(rows.items())
            if int(key) % 2 == task.number % 2
        ]


def _view(slot: Slot) -> SlotView:
    lost = "wal_removed" if slot.lost else None
    pid = None if slot.active is None else 1
    return SlotView(
        slot.name, Boundary(slot.confirmed), Boundary(slot.restart), pid, "lost" if lost else "reserved", lost, False
    )
