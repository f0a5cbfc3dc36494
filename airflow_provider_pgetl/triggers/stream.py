"""The trigger that waits until the `apply` of a run streams, or is going to."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl.triggers.base import PipelineTrigger


class StreamTrigger(PipelineTrigger):
    """Fires when the `apply` of the run, or of another run of its DAG, has not ended; or at the time `until`.

    :param run: the name of the run in the completion records.
    :param apply: the id of the task.
    :param until: seconds since the Unix epoch.
    """

    work = "airflow_provider_pgetl.triggers.waiting:await_apply"

    def __init__(self, run: str, apply: str, until: float, **_unknown: Any) -> None:
        super().__init__()
        self.run_name = run
        self.apply = apply
        self.until = until

    def stored(self) -> dict[str, Any]:
        return {"run": self.run_name, "apply": self.apply, "until": self.until}
