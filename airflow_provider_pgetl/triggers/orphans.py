"""Tables that are to be copied, and that no task of the run is left to copy. Pure; the time is given.

A table may fall back to Init while a run goes on: the source lost its slot, its catch-up lost what it needed. If its
`data_sync` has passed in this run already, nobody here will copy it; the run is to end, so that the next one does.
That is judged with patience: a person's Clear, and a retry, take moments in which it looks the same. While the pipeline
is paused nobody is to copy anything, and nobody is missed.

Or its `data_sync` has failed for good. That ends a run which is to catch up, and which then never would; but not
before its other tables are where they belong, as they need the stream for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_pgetl.clearing import is_to_come
from airflow_provider_pgetl.engine.phases import DataSync, Init
from airflow_provider_pgetl.engine.sync import upkeep
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.naming import group_id

if TYPE_CHECKING:
    from airflow_provider_pgetl.engine.state.watching import Picture

_PASSED_SECONDS = 30.0
# A task may have failed for good, which the book does not know; longer than the longest pause between its retries.
_SILENT_SECONDS = 1800.0
# Airflow knows it; but a task of another table may be about to copy this one along with its own.
_FAILED_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Copier:
    """The task that copies a table, and the tasks that it follows."""

    table: TableName
    task: str
    before: tuple[str, ...]

    def as_json(self) -> list[Any]:
        return [self.table.schema, self.table.name, self.task, list(self.before)]

    @classmethod
    def from_json(cls, data: list[Any]) -> Self:
        schema, name, task, before = data
        return cls(TableName(schema, name), task, tuple(before))


@dataclass
class Orphans:
    """Asked again and again. `now`: seconds by any clock."""

    copiers: tuple[Copier, ...]
    _since: dict[TableName, float] = field(default_factory=dict)
    _failed_since: dict[TableName, float] = field(default_factory=dict)

    def found(self, picture: Picture, completions: Mapping[str, float], now: float) -> list[TableName]:
        waiting = {one for one, state in picture.states.items() if isinstance(state.phase, Init)}
        quiet = not upkeep.groups_under_way(picture.states, picture.live)
        left: list[TableName] = []
        for copier in self.copiers:
            passed = not is_to_come(copier.task, copier.before, completions)
            lonely = copier.table in waiting and (passed or quiet) and not picture.paused
            if _lasts(self._since, copier.table, lonely, now, _PASSED_SECONDS if passed else _SILENT_SECONDS):
                left.append(copier.table)
        return left

    def failed(self, picture: Picture, failed: Collection[str], now: float) -> list[TableName]:
        """Those whose tasks are among `failed`, once nothing else is on its way."""
        idle = {one for one in picture.states if is_uncopied(picture, one)}
        left = [
            copier.table
            for copier in self.copiers
            if _lasts(
                self._failed_since, copier.table, copier.table in idle and copier.task in failed, now, _FAILED_SECONDS
            )
        ]
        return left if set(upkeep.on_their_way(picture.states, picture.now)) <= set(left) else []


def copying_tasks(copiers: Sequence[Copier], tables: Collection[TableName]) -> list[str]:
    """The ids of the tasks that copy these tables of the state, whether or not the DAG's file has them still: it may
    have been edited between the run's beginning and that of the trigger."""
    one = copiers[0]
    return sorted(one.task.replace(group_id(one.table), group_id(table)) for table in tables)


def is_uncopied(picture: Picture, table: TableName) -> bool:
    """Whether it is to be copied, and nobody is doing it."""
    state = picture.states[table]
    dead = isinstance(state.phase, DataSync) and state.attempt not in picture.live
    return dead or isinstance(state.phase, Init)


def _lasts(since: dict[TableName, float], table: TableName, holds: bool, now: float, seconds: float) -> bool:
    """Whether something has held of a table for so long."""
    if not holds:
        since.pop(table, None)
        return False
    return now - since.setdefault(table, now) >= seconds
