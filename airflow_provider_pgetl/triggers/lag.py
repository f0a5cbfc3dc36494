"""The trigger that waits until the lag of a pipeline's stream is within a limit."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl.triggers.base import PipelineTrigger


class LagTrigger(PipelineTrigger):
    """Fires when the lag is within the limit.

    :param pipeline: the pipeline's id.
    :param state_conn_id: the connection of the pipeline's state.
    :param most_bytes: the limit in bytes of WAL, or None.
    :param most_seconds: the limit in seconds, or None.
    """

    work = "airflow_provider_pgetl.triggers.waiting:lag"

    def __init__(
        self, pipeline: str, state_conn_id: str, most_bytes: int | None, most_seconds: float | None, **_unknown: Any
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.state_conn_id = state_conn_id
        self.most_bytes = most_bytes
        self.most_seconds = most_seconds

    def stored(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "state_conn_id": self.state_conn_id,
            "most_bytes": self.most_bytes,
            "most_seconds": self.most_seconds,
        }
