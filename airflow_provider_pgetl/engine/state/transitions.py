"""Several tables taking their events at once: all, or none.

Both stores decide here, so that they cannot differ: `memory` under its lock, `postgres` between `select … for update`
and the write. Pure; which tables are registered is told by which states are given.
"""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_pgetl.engine.phases import Event, Refused, TableState, transition
from airflow_provider_pgetl.engine.tables import TableName

HISTORY_KEPT = 200
"""Entries of history kept per table, the present one included; a table that fails and is retried for ever must not
fill the state database."""


def take(
    states: Mapping[TableName, TableState], events: Mapping[TableName, Event]
) -> Mapping[TableName, TableState] | Refused:
    """The states after the events, or the first refusal in the order of table names."""
    taken: dict[TableName, TableState] = {}
    for table in sorted(events):
        if table not in states:
            return Refused(f"{table} is not registered")
        after = transition(states[table], events[table])
        if isinstance(after, Refused):
            return Refused(f"{table}: {after.why}")
        taken[table] = after
    return taken


def take_each(
    states: Mapping[TableName, TableState], events: Mapping[TableName, Event]
) -> Mapping[TableName, TableState | Refused]:
    """What becomes of each table by itself."""
    unknown = {table: Refused(f"{table} is not registered") for table in events if table not in states}
    return unknown | {table: transition(states[table], events[table]) for table in events if table in states}


def superseded(present: int, epoch: int | None) -> Refused | None:
    """Why a worker of this epoch may not speak, if it may not: what it knows of a hand-over is another worker's now."""
    if epoch is None or epoch == present:
        return None
    return Refused(f"epoch {epoch} was superseded by {present}")
