"""The trigger that waits until a table that is to be copied can be: until there is room, or another has copied it.

When room comes, everybody who waits for it hears of it at once. They do not all come back: those whose tables come
first in the alphabet do, and each of the others only if the room is still there some seconds later.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_pgetl.engine.phases import DataSync, Init
from airflow_provider_pgetl.engine.sync import upkeep
from airflow_provider_pgetl.engine.tables import TableName
from airflow_provider_pgetl.triggers.watchers import watcher

if TYPE_CHECKING:
    from airflow_provider_pgetl.engine.state.watching import Picture

_PLACE_SECONDS = 3.0


class TurnTrigger(BaseTrigger):
    """Fires when there is something to do for `data_sync`, but not before `not_before` (seconds since the Unix
    epoch).

    :param room: how many groups may be copied or catch up at once.
    """

    def __init__(
        self, pipeline: str, state_conn_id: str, table: list[str], room: int, not_before: float | None = None
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.state_conn_id = state_conn_id
        self.table = table
        self.room = room
        self.not_before = not_before

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs = {
            "pipeline": self.pipeline,
            "state_conn_id": self.state_conn_id,
            "table": self.table,
            "room": self.room,
            "not_before": self.not_before,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        if self.not_before is not None:
            await asyncio.sleep(max(0.0, self.not_before - time.time()))
            yield TriggerEvent({"due": True})
            return
        waiting = await watcher(self.state_conn_id, self.pipeline)
        picture = await waiting.wait(self._is_on)
        while place := self._place(picture):
            await asyncio.sleep(place * _PLACE_SECONDS)
            again = await waiting.wait(self._is_on)
            if self._place(again) >= place:
                break
            picture = again
        yield TriggerEvent({"due": False})

    def _is_on(self, picture: Picture) -> bool:
        """Whether the table could be copied now, or needs not be any more."""
        state = picture.states.get(TableName(*self.table))
        if state is not None and isinstance(state.phase, DataSync):
            return state.attempt not in picture.live
        if state is not None and isinstance(state.phase, Init):
            return upkeep.groups_under_way(picture.states, picture.live) < self.room
        return True

    def _place(self, picture: Picture) -> int:
        """How many times room must have been left unused before it is this table's turn."""
        waiting = upkeep.tables_to_copy(picture.states)
        table = TableName(*self.table)
        return waiting.index(table) // self.room if table in waiting else 0
