"""The trigger that waits until a table reaches a phase; the task that resumes checks the result."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl.triggers.base import PipelineTrigger


class PhaseTrigger(PipelineTrigger):
    """Fires when the table is in one of `phases`, or does not exist any more; at the time `until`, if there is one; or
    when no stream will bring the table further in its run (`waiting`).

    :param pipeline: the pipeline's id.
    :param state_conn_id: the connection of the pipeline's state.
    :param table: ``[schema, name]``.
    :param phases: the names of the phases.
    :param until: seconds since the Unix epoch, or None.
    :param run: the name of the run in the completion records.
    :param apply: the id of the run's task that streams. Without it, any stream may bring the table further, and the
        wait has no such bound.
    :param grace: for how many seconds no worker may stream before Airflow is asked whether the run's `apply` has ended.
    """

    work = "airflow_provider_pgetl.triggers.waiting:phase"

    def __init__(
        self,
        pipeline: str,
        state_conn_id: str,
        table: list[str],
        phases: list[str],
        until: float | None = None,
        run: str = "",
        apply: str = "",
        grace: float = 180.0,
        **_unknown: Any,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.state_conn_id = state_conn_id
        self.table = table
        self.phases = phases
        self.until = until
        self.run_name = run
        self.apply = apply
        self.grace = grace

    def stored(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "state_conn_id": self.state_conn_id,
            "table": self.table,
            "phases": self.phases,
            "until": self.until,
            "run": self.run_name,
            "apply": self.apply,
            "grace": self.grace,
        }
