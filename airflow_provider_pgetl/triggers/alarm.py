"""When a table that has become Errored is to interrupt the stream: to call back, or to end the run. Pure.

* A table that was Errored when the run's `prepare` completed is none of its business: the table's own tasks come after
  that, and fail.
* Where somebody is to be called back, it interrupts for each time that a table becomes Errored, once.
* Where an Errored table is to fail the run, it interrupts for one that was Ready: the tasks of such a table have
  passed. Of the others a task is still to come, or has failed.
* A table that is rolled back by the clock gets some time to come back by itself.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_pgetl.errored_tables import ErroredTable, Mark, errored_tables

if TYPE_CHECKING:
    from airflow_provider_pgetl.engine.state.watching import Picture

_PATIENT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Rung:
    """`untold`: those of whom somebody is to be told. `fatal`: those that fail the run."""

    untold: tuple[ErroredTable, ...]
    fatal: tuple[ErroredTable, ...]


@dataclass(frozen=True, slots=True)
class Alarm:
    """`since`: what was Errored before (by the store's clock) counts not. `told`: those of whom somebody was told
    already. `tells`: whether somebody is to be told. `fail_after`: for how many seconds a table may be Errored; None
    for ever."""

    since: float
    told: Collection[Mark]
    tells: bool
    fail_after: float | None

    def rings(self, picture: Picture) -> Rung | None:
        tables = [one for one in errored_tables(picture.states, picture.since) if one.since > self.since]
        untold = tuple(one for one in tables if self.tells and one.mark not in self.told and _lasts(one, picture.now))
        fatal = tuple(one for one in tables if one.was_ready and self._is_fatal(one, picture.now))
        return Rung(untold, fatal) if untold or fatal else None

    def _is_fatal(self, table: ErroredTable, now: float) -> bool:
        if self.fail_after is None:
            return False
        return now - table.since >= self.fail_after and _lasts(table, now)


def _lasts(table: ErroredTable, now: float) -> bool:
    return table.retry_at is None or now - table.since >= _PATIENT_SECONDS
