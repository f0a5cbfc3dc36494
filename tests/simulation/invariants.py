"""What must hold after every step, whatever has happened, and what must have come about at the end.

After every step
* **exact**: a table in the destination equals the source's at exactly the table's recorded position;
* **nothing lost**: whatever a table lacks is still in the slot that is to deliver it: no change lies between its
  position and what that slot is confirmed to (the apply slot for a table that is followed, else its group's);
* **nothing torn**: all Ready tables show the source at one moment;
* **handed over where it stands**: a table that becomes SyncDone is, in the destination, exactly at the position that
  is named, and has no change from there to the boundary;
* **one history**: positions of one copy only rise; a table's copy in the destination is the one the store knows;
* without positions in the destination: **whole again**, once what its slot still holds is applied once more;
* **never ahead of the ceiling**: the apply slot is confirmed only to where the store was told before;
* **bounded runs end when they may** (`World.expect_caught_up`): what was committed before is there.

A store that was set back says nothing true until a preparation has judged it; from then on it is held to all of it.

At the end, when nothing goes wrong any more
* every table is Ready (those that wait for a person excepted, until somebody has come), and equal to the source;
* no slot is left that no phase needs, and nothing staged;
* or each run is refused, as the store was set back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from airflow_provider_pgetl.engine.destinations.fencing import TableMetadata
from airflow_provider_pgetl.engine.model.phases import Errored, Ready, SyncDone, TableState, needs_group_slot
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from tests.simulation.destination import put_change
from tests.simulation.history import Violation
from tests.simulation.source import Slot
from tests.simulation.world import APPLY_SLOT, CEILING, PIPELINE, World, slot_of

_REFUSED_FOR_GOOD = 3


class Invariants:
    """Remembers what only rises."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._records: dict[TableName, TableMetadata] = {}
        self._states: Mapping[TableName, TableState] = {}
        self._seen: object = None

    def check(self) -> None:
        """After a step; nothing is looked at twice."""
        world = self._world
        apply = world.source.slots.get(APPLY_SLOT)
        records = {t: r for t in world.tables if (r := world.destination.storage.records.get((PIPELINE, t)))}
        slots = (
            tuple((s.name, s.confirmed, s.lost, s.made) for s in world.source.slots.values()),
            tuple(world.restored.items()),
        )
        seen = (records, slots, world.durable.view, len(world.source.wal))
        if seen == self._seen:
            return
        self._seen = seen
        self._check_lineage()
        if not world.scenario.exactly_once:
            self._check_replays(apply)
            return
        for table, state in world.states.items():
            self._check_table(table, state, records.get(table), apply)
        self._check_cut(records)
        self._check_ceiling(apply)
        self._records, self._states = records, world.states

    def _check_lineage(self) -> None:
        """A source that never went back is not said to have."""
        lineage = self._world.durable.view.pipeline.lineage
        if lineage is not None and lineage.ended is not None and not self._world.source.went_back:
            raise Violation(f"a false alarm: {lineage.ended}")

    def _check_replays(self, apply: Slot | None) -> None:
        """All that can be asked without positions: what the slot still holds makes the table whole again."""
        for table, state in self._world.states.items():
            if isinstance(state.phase, SyncDone | Ready):
                self._check_replay(table, apply if apply is not None and self._is_known(apply) else None)
            elif needs_group_slot(state) and state.attempt is not None:
                self._check_replay(table, self._world.source.slots.get(slot_of(state.attempt)))

    def _check_replay(self, table: TableName, slot: Slot | None) -> None:
        source = self._world.source
        if slot is None or slot.lost:
            return
        rows = dict(self._world.destination.storage.tables[table].rows)
        for transaction in source.wal[bisect_left(source.commits, slot.confirmed) :]:
            for changed in transaction.changes:
                if changed.table != table:
                    continue
                if changed.change is None:
                    rows.clear()
                else:
                    put_change(rows, changed.change)
        if rows != source.tables[table].rows:
            confirmed = f"{slot.name}, confirmed to {slot.confirmed},"
            raise Violation(f"{table}: {confirmed} leads to {_rows(rows)}, not {_rows(source.tables[table].rows)}")

    def _check_table(
        self, table: TableName, state: TableState, record: TableMetadata | None, apply: Slot | None
    ) -> None:
        if self._world.is_astray(table):
            return
        if record is not None:
            self._check_rows(table, record)
            self._check_rising(table, record)
        if self._world.unjudged:
            return
        if isinstance(state.phase, SyncDone | Ready):
            self._check_followed(table, state, record, apply)
        elif needs_group_slot(state) and state.attempt is not None:
            slot = self._world.source.slots.get(slot_of(state.attempt))
            self._check_catching_up(table, state, record, slot)

    def _check_rows(self, table: TableName, record: TableMetadata) -> None:
        if record.position is None or not self._world.is_whole(table, record):
            return
        has = self._world.destination.rows(table)
        ought = self._world.source.tables[table].at(record.position)
        if not alike(has, ought):
            raise Violation(f"{table} at {record.position.lsn} has {_rows(has)}, not {_rows(ought)}")

    def _check_rising(self, table: TableName, record: TableMetadata) -> None:
        before = self._records.get(table)
        if self._world.is_restored(table):
            return
        if before is None or before.published != record.published or before.position is None:
            return
        if record.position is not None and record.position < before.position:
            raise Violation(f"{table} went back from {before.position.lsn} to {record.position.lsn}")

    def _check_followed(
        self, table: TableName, state: TableState, record: TableMetadata | None, apply: Slot | None
    ) -> None:
        if self._world.is_restored(table):
            return
        position = self._expect_copy(table, state, record)
        if isinstance(state.phase, SyncDone) and self._states.get(table) != state:
            self._check_handed_over(table, state.phase, position)
        if apply is not None and self._is_known(apply) and not apply.lost:
            self._expect_delivery(table, position, apply)

    def _check_handed_over(self, table: TableName, done: SyncDone, position: Boundary) -> None:
        if position != done.position:
            raise Violation(f"{table} became SyncDone at {done.position.lsn}, but stands at {position.lsn}")
        rows = self._world.source.tables[table]
        if not alike(rows.at(position), rows.at(done.boundary)):
            raise Violation(f"{table} changed from {position.lsn} to {done.boundary.lsn}, where it was handed over")

    def _check_catching_up(
        self, table: TableName, state: TableState, record: TableMetadata | None, slot: Slot | None
    ) -> None:
        if self._world.is_restored(table):
            return
        position = self._expect_copy(table, state, record)
        if slot is not None and not slot.lost:
            self._expect_delivery(table, position, slot)

    def _expect_copy(self, table: TableName, state: TableState, record: TableMetadata | None) -> Boundary:
        if record is None or record.position is None or record.published != state.attempt:
            raise Violation(f"{table} is {state}, but the destination has {record}")
        return record.position

    def _expect_delivery(self, table: TableName, position: Boundary, slot: Slot) -> None:
        if self._world.source.tables[table].changed(position, Boundary(slot.confirmed)):
            confirmed = f"{slot.name} is confirmed to {slot.confirmed}"
            raise Violation(f"changes of {table} are lost: it stands at {position.lsn}, {confirmed}")

    def _check_cut(self, records: dict[TableName, TableMetadata]) -> None:
        """There is one moment at which the source was as all Ready tables are. A backup may have been taken amid a
        hand-over, so a restored destination has such a moment only later."""
        if self._world.restores or self._world.unjudged:
            return
        after, until = -1, float("inf")
        for table, state in self._world.states.items():
            record = records.get(table)
            if self._world.is_astray(table):
                continue
            if isinstance(state.phase, Ready) and record is not None and record.position is not None:
                first, last = self._world.source.tables[table].cuts(record.position)
                after, until = max(after, first), min(until, last)
        if after >= until:
            raise Violation(f"Ready tables show a transaction in part: {self._cuts(records)}")

    def _cuts(self, records: dict[TableName, TableMetadata]) -> str:
        return ", ".join(f"{table} at {record.position}" for table, record in records.items())

    def _check_ceiling(self, apply: Slot | None) -> None:
        if apply is None or apply.confirmed == apply.made or self._world.unjudged:
            return
        ceiling = self._world.durable.progress.get(CEILING)
        if ceiling is None and apply.back_again:
            return
        if ceiling is None or apply.confirmed > ceiling.upto.lsn:
            raise Violation(f"the apply slot is confirmed to {apply.confirmed}, beyond the ceiling {ceiling}")

    def _is_known(self, apply: Slot) -> bool:
        """Else somebody has made it behind our back: history has a gap, which whoever connects next must see."""
        ceiling = self._world.durable.progress.get(CEILING)
        return ceiling is not None and apply.made <= ceiling.upto.lsn


def unfinished(world: World, excused: set[TableName]) -> Iterator[str]:
    """What is still missing of a happy end."""
    if world.refusals >= _REFUSED_FOR_GOOD:
        return
    for table, state in world.states.items():
        if table in excused and isinstance(state.phase, Errored):
            continue
        if not isinstance(state.phase, Ready):
            yield f"{table} is {state.phase}"
        elif not alike(world.destination.rows(table), world.source.tables[table].rows):
            yield f"{table} is not up to date"
    needed = {slot_of(s.attempt) for s in world.states.values() if needs_group_slot(s) and s.attempt is not None}
    for slot in sorted(world.source.slots.keys() - needed - {APPLY_SLOT}):
        yield f"the slot {slot} is left"
    needed_staging = {t for t in excused if isinstance(world.states[t].phase, Errored)}
    for _, table, attempt in world.destination.storage.staging:
        if table not in needed_staging:
            yield f"attempt {attempt} left something staged of {table}"


def alike(one: Mapping[Hashable, Mapping[str, Any]], other: Mapping[Any, Mapping[str, Any]]) -> bool:
    """The same rows, by whatever they are known."""
    return one == other or (len(one) == len(other) and _contents(one) == _contents(other))


def _contents(rows: Mapping[Any, Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in ("id", "value", "big")) for row in rows.values())


def _rows(rows: Mapping[Any, Mapping[str, Any]]) -> str:
    texts = ([_text(row[name]) for name in ("id", "value", "big")] for _, row in sorted(rows.items()))
    return "{" + ", ".join(f"{key}: {value}/{big}" for key, value, big in texts) + "}"


def _text(value: bytes | None) -> str:
    return "NULL" if value is None else value.decode()
