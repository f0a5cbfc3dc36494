"""Decides what follows when a child of the supervisor has ended: another child after a pause, or the end of the task.
Pure; the times are passed in.

* A child that ended without reporting an ending is started again, with growing pauses; the fifth in a row ends the
  task.
* A child that has ended because a server is out of reach is started again, with growing pauses, until the outage has
  lasted longer than is tolerated. An outage is over when a child has streamed.
* A child that was fenced is started again as well: another worker has the pipeline, and the new child waits for its
  lease. Where that other worker belongs to the same task (the task was cleared, or its trigger was moved to another
  triggerer), this trigger is cancelled while it waits, and has sent no event that Airflow could take for the task's
  end. A child that is fenced repeatedly, though the lease was free, shares its destination with a pipeline of another
  store.
* A child that has received no heartbeat of its supervisor for too long is started again at once: this process was
  suspended.
* Every other end is final.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_pgetl.completion_records import is_to_come
from airflow_provider_pgetl.engine.config.jobs import Ending
from airflow_provider_pgetl.engine.model.errors import Backoff, ErrorKind
from airflow_provider_pgetl.engine.model.phases import DataSync, Init
from airflow_provider_pgetl.engine.model.quantities import format_duration
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.errored_tables import ErroredTable, Mark, errored_tables
from airflow_provider_pgetl.naming import group_id

if TYPE_CHECKING:
    from airflow_provider_pgetl.engine.monitoring.snapshots import PipelineSnapshot


_BACKOFF = Backoff(2.0, 60.0)
_OUTAGE_BACKOFF = Backoff(2.0, 30.0)
_CRASHES_MOST = 5
_LONG_ENOUGH = 300.0
_TELL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Again:
    """Starts another child after a pause of `seconds`; `why` is for the log, empty where it was logged less than a
    minute ago."""

    seconds: float
    why: str


@dataclass(slots=True)
class _Outage:
    since: float
    told: float = float("-inf")
    children: int = 0


class Restarts:
    """Decides for each child whether another follows. `outage_seconds`: how long an outage is tolerated, None without a
    bound."""

    def __init__(self, outage_seconds: float | None) -> None:
        self._outage_seconds = outage_seconds
        self._crashes = 0
        self._outage: _Outage | None = None

    def after(
        self, ending: Ending | None, last_words: str, *, began: float, now: float, streamed: bool
    ) -> Again | Ending:
        """Returns what follows the child. It must be called once for each.

        `ending`: None if the child reported none. `last_words`: its exit status and the end of its standard error.
        `began`: when it was started. `streamed`: whether it has streamed.
        """
        if streamed:
            self._outage = None
        if ending is None:
            return self._crashed("died", last_words, "", now - began)
        if ending.abandoned:
            return Again(0.0, "This triggerer stood still, and the streaming worker ended; another one is started.")
        if ending.fenced:
            return self._crashed("was fenced", ending.message, ending.remedy, now - began)
        if ending.kind is not None and ErrorKind(ending.kind).transient:
            return self._out_of_reach(ending, now)
        return ending

    def _out_of_reach(self, ending: Ending, now: float) -> Again | Ending:
        outage = self._outage = self._outage or _Outage(now)
        lasted = now - outage.since
        if self._outage_seconds is not None and lasted >= self._outage_seconds:
            return replace(ending, message=f"{ending.message} It has been so for {format_duration(lasted)}.")
        outage.children += 1
        pause = _OUTAGE_BACKOFF.after(outage.children)
        if now - outage.told < _TELL_SECONDS:
            return Again(pause, "")
        outage.told = now
        return Again(pause, f"{ending.message} {self._until(lasted)}")

    def _until(self, lasted: float) -> str:
        since = f"It has been so for {format_duration(lasted)}. " if lasted else ""
        if self._outage_seconds is None:
            return f"{since}The stream goes on when that has passed."
        bound = format_duration(self._outage_seconds)
        return f"{since}The stream goes on when that has passed, and the task fails if it lasts {bound}."

    def _crashed(self, how: str, words: str, remedy: str, ran: float) -> Again | Ending:
        self._crashes = 1 if ran > _LONG_ENOUGH else self._crashes + 1
        if self._crashes >= _CRASHES_MOST:
            message = f"The streaming worker {how} {self._crashes} times in a row; {words}"
            return Ending(ErrorKind.INTERNAL.value, message, remedy)
        pause = _BACKOFF.after(self._crashes)
        return Again(pause, f"The streaming worker {how} and is started again; {words}")


# -- Tables that are to be copied, and that no task of the run is left to copy. Pure; the time is passed in. -----------
#
# A table may fall back to Init while a run goes on: the source lost its slot, or its catch-up lost what it needed. If
# its `data_sync` has passed in this run already, no task of the run will copy it; the run must end, so that the next
# one does. That is concluded only after some time: after a person's Clear, or before a retry, the state looks the same
# for some moments. While the pipeline is paused no task is expected to copy.
#
# Or its `data_sync` has failed and is not retried. That ends a run `until="caught_up"`, which otherwise never would;
# but not before its other tables are Ready, as they need the stream for that.

_PASSED_SECONDS = 30.0
# A task may have failed without a retry, which the completion records do not show; longer than the longest pause
# between its retries.
_SILENT_SECONDS = 1800.0
# The failure was confirmed by Airflow; but a task of another table may be about to copy this one along with its own.
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
    """Finds the tables that no task of the run will copy. It must be called repeatedly. `now`: seconds by any clock."""

    copiers: tuple[Copier, ...]
    _since: dict[TableName, float] = field(default_factory=dict)
    _failed_since: dict[TableName, float] = field(default_factory=dict)

    def found(self, picture: PipelineSnapshot, completions: Mapping[str, float], now: float) -> list[TableName]:
        waiting = {one for one, state in picture.states.items() if isinstance(state.phase, Init)}
        quiet = not picture.groups_under_way
        left: list[TableName] = []
        for copier in self.copiers:
            passed = not is_to_come(copier.task, copier.before, completions)
            lonely = copier.table in waiting and (passed or quiet) and not picture.paused
            if _lasts(self._since, copier.table, lonely, now, _PASSED_SECONDS if passed else _SILENT_SECONDS):
                left.append(copier.table)
        return left

    def failed(self, picture: PipelineSnapshot, failed: Collection[str], now: float) -> list[TableName]:
        """Returns the tables whose tasks are among `failed`, once no other table is on its way to Ready."""
        idle = {one for one in picture.states if is_uncopied(picture, one)}
        left = [
            copier.table
            for copier in self.copiers
            if _lasts(
                self._failed_since, copier.table, copier.table in idle and copier.task in failed, now, _FAILED_SECONDS
            )
        ]
        return left if set(picture.on_their_way) <= set(left) else []


def copying_tasks(copiers: Sequence[Copier], tables: Collection[TableName]) -> list[str]:
    """Returns the ids of the tasks that copy these tables of the state, whether or not the DAG's file still contains
    them: it may have been edited between the beginning of the run and that of the trigger."""
    one = copiers[0]
    return sorted(one.task.replace(group_id(one.table), group_id(table)) for table in tables)


def is_uncopied(picture: PipelineSnapshot, table: TableName) -> bool:
    """Returns whether the table is to be copied, and no live attempt is copying it."""
    state = picture.states[table]
    dead = isinstance(state.phase, DataSync) and state.attempt not in picture.live
    return dead or isinstance(state.phase, Init)


def _lasts(since: dict[TableName, float], table: TableName, holds: bool, now: float, seconds: float) -> bool:
    """Returns whether a condition has held of a table for at least `seconds`."""
    if not holds:
        since.pop(table, None)
        return False
    return now - since.setdefault(table, now) >= seconds


# -- When a table that has become Errored interrupts the stream: to call callbacks, or to end the run. Pure. -----------
#
# * A table that was Errored when the run's `prepare` completed is not considered: the table's own tasks come after
#   that, and fail.
# * Where callbacks are to be called, a table interrupts once for each time that it becomes Errored.
# * Where an Errored table is to fail the run, a table that was Ready interrupts: its own tasks have passed. Of any
#   other table a task is still to come, or has failed.
# * A table that is rolled back automatically has some time in which to recover.

_PATIENT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Rung:
    """The reason for an interruption. `untold`: the tables for which callbacks are to be called. `fatal`: those that
    fail the run."""

    untold: tuple[ErroredTable, ...]
    fatal: tuple[ErroredTable, ...]


@dataclass(frozen=True, slots=True)
class Alarm:
    """Decides whether Errored tables interrupt the stream.

    `since`: tables that became Errored before (by the store's clock) are not considered. `told`: the occasions for
    which callbacks have been called already. `tells`: whether callbacks are to be called. `fail_after`: for how many
    seconds a table may be Errored; None for ever.
    """

    since: float
    told: Collection[Mark]
    tells: bool
    fail_after: float | None

    def rings(self, picture: PipelineSnapshot) -> Rung | None:
        tables = [one for one in errored_tables(picture.states, picture.since) if one.since > self.since]
        untold = tuple(
            one for one in tables if self.tells and one.mark not in self.told and _lasts_errored(one, picture.now)
        )
        fatal = tuple(one for one in tables if one.was_ready and self._is_fatal(one, picture.now))
        return Rung(untold, fatal) if untold or fatal else None

    def _is_fatal(self, table: ErroredTable, now: float) -> bool:
        if self.fail_after is None:
            return False
        return now - table.since >= self.fail_after and _lasts_errored(table, now)


def _lasts_errored(table: ErroredTable, now: float) -> bool:
    return table.retry_at is None or now - table.since >= _PATIENT_SECONDS
