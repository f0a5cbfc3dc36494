"""The trigger that waits until the `apply` of a run streams, or will."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl.triggers.base import PipelineTrigger


class StreamTrigger(PipelineTrigger):
    """Fires when the `apply` of the run, or of another run of its DAG, has not ended; or at the time `until` (seconds
    since the Unix epoch).

    :param run: the run's name in the pipeline's book. `apply`: the task's id.
    """

    work = "airflow_provider_pgetl.triggers.waiting:await_apply"

    def __init__(self, run: str, apply: str, until: float, **_unknown: Any) -> None:
        super().__init__()
        self.run_name = run
        self.apply = apply
        self.until = until

    def stored(self) -> dict[str, Any]:
        return {"run": self.run_name, "apply": self.apply, "until": self.until}
