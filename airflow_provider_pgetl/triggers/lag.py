"""The trigger that waits until a pipeline's stream is not far behind its source."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_pgetl.lag_limit import LagLimit
from airflow_provider_pgetl.triggers.watchers import watcher


class LagTrigger(BaseTrigger):
    """Fires when the lag is within the limit."""

    def __init__(self, pipeline: str, state_conn_id: str, most_bytes: int | None, most_seconds: float | None) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.state_conn_id = state_conn_id
        self.limit = LagLimit(most_bytes, most_seconds)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        kwargs = {
            "pipeline": self.pipeline,
            "state_conn_id": self.state_conn_id,
            "most_bytes": self.limit.bytes,
            "most_seconds": self.limit.seconds,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", kwargs

    async def run(self) -> AsyncIterator[TriggerEvent]:
        waiting = await watcher(self.state_conn_id, self.pipeline)
        await waiting.wait(self.limit.holds)
        yield TriggerEvent({"within": True})
