"""The trigger that waits for a table to come somewhere; the task that resumes judges what it finds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_pgetl.engine.phases import phase_name
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.triggers.watchers import watcher

if TYPE_CHECKING:
    from airflow_provider_pgetl.engine.state.watching import Picture


class PhaseTrigger(BaseTrigger):
    """Fires when the table is in one of `phases`, or is not there any more; or at the time `until`, if there is one."""

    def __init__(
        self, pipeline: str, state_conn_id: str, table: list[str], phases: list[str], until: float | None = None
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.state_conn_id = state_conn_id
        self.table = table
        self.phases = phases
        self.until = until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs = {
            "pipeline": self.pipeline,
            "state_conn_id": self.state_conn_id,
            "table": self.table,
            "phases": self.phases,
            "until": self.until,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        left = None if self.until is None else max(0.0, self.until - time.time())
        try:
            async with asyncio.timeout(left):
                waiting = await watcher(self.state_conn_id, self.pipeline)
                picture = await waiting.wait(self._reached)
        except TimeoutError:
            yield TriggerEvent({"phase": None, "due": True})
            return
        state = picture.states.get(TableName(*self.table))
        yield TriggerEvent({"phase": None if state is None else phase_name(state.phase)})

    def _reached(self, picture: Picture) -> bool:
        state = picture.states.get(TableName(*self.table))
        return state is None or phase_name(state.phase) in self.phases
