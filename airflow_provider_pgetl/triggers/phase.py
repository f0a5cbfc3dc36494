"""The trigger that waits for a table to come somewhere; the task that resumes judges what it finds.

Hundreds of tables may wait at once, so waits share: per triggerer process and pipeline one connection listens and one
query reads all tables for everybody who waits (`engine.state.watching`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any
from weakref import WeakKeyDictionary

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_pgetl.connections import STATE, ConnectionIds, aenvironment
from airflow_provider_pgetl.engine.phases import phase_name
from airflow_provider_pgetl.engine.state.watching import Phases, Watcher
from airflow_provider_pgetl.engine.tables import TableName

_WATCHERS: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], Watcher]] = WeakKeyDictionary()


class PhaseTrigger(BaseTrigger):
    """Fires when the table is in one of `phases`, or is not there any more."""

    def __init__(self, pipeline: str, state_conn_id: str, table: list[str], phases: list[str]) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.state_conn_id = state_conn_id
        self.table = table
        self.phases = phases

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs = {
            "pipeline": self.pipeline,
            "state_conn_id": self.state_conn_id,
            "table": self.table,
            "phases": self.phases,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        environment = await aenvironment(ConnectionIds(self.state_conn_id, self.state_conn_id))
        table = TableName(*self.table)
        phases = await _watcher(environment[STATE], self.pipeline).wait(_reached(table, frozenset(self.phases)))
        yield TriggerEvent({"phase": phase_name(phases[table]) if table in phases else None})


def _reached(table: TableName, wanted: frozenset[str]) -> Callable[[Phases], bool]:
    return lambda phases: table not in phases or phase_name(phases[table]) in wanted


def _watcher(uri: str, pipeline: str) -> Watcher:
    """The one of this event loop. A changed password makes a new one; the old one goes with its last wait."""
    watchers = _WATCHERS.setdefault(asyncio.get_running_loop(), {})
    return watchers.setdefault((uri, pipeline), Watcher(uri, pipeline))
