"""The trigger that waits until the servers of a pipeline can be reached again."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl.triggers.base import PipelineTrigger


class OutageTrigger(PipelineTrigger):
    """Fires when all of the pipeline's PostgreSQL servers take connections, or at the time `until` (seconds since the
    Unix epoch), if there is one; in any case not before `pause` seconds.

    :param connections: the ids of the pipeline's connections.
    """

    work = "airflow_provider_pgetl.triggers.watchers:reach"

    def __init__(
        self,
        pipeline: str,
        connections: dict[str, str | None],
        pause: float = 5.0,
        until: float | None = None,
        **_unknown: Any,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.connections = connections
        self.pause = pause
        self.until = until

    def stored(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "connections": self.connections,
            "pause": self.pause,
            "until": self.until,
        }
