"""The trigger that waits for a table to come somewhere; the task that resumes judges what it finds."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl.triggers.base import PipelineTrigger


class PhaseTrigger(PipelineTrigger):
    """Fires when the table is in one of `phases`, or is not there any more; or at the time `until`, if there is one."""

    work = "airflow_provider_pgetl.triggers.waiting:phase"

    def __init__(
        self,
        pipeline: str,
        state_conn_id: str,
        table: list[str],
        phases: list[str],
        until: float | None = None,
        **_unknown: Any,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.state_conn_id = state_conn_id
        self.table = table
        self.phases = phases
        self.until = until

    def stored(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "state_conn_id": self.state_conn_id,
            "table": self.table,
            "phases": self.phases,
            "until": self.until,
        }
