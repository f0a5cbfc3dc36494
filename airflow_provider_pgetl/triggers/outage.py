"""The trigger that waits until the servers of a pipeline can be reached again."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl.triggers.base import PipelineTrigger


class OutageTrigger(PipelineTrigger):
    """Fires when all of the pipeline's PostgreSQL servers accept connections, or at the time `until`, but not before
    `pause` seconds have passed.

    :param pipeline: the pipeline's id.
    :param connections: the ids of the pipeline's connections.
    :param pause: seconds before the first attempt to connect; the pauses then grow.
    :param until: seconds since the Unix epoch; None waits without a bound.
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
