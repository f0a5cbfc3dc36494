"""The trigger that waits until a table that is Ready has caught up as a run requires; the task that resumes checks the
result."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl.triggers.base import PipelineTrigger


class CaughtUpTrigger(PipelineTrigger):
    """Fires when everything before `position` is in the destination, when the table is not Ready any more, or when the
    task `follows` of the run, which brings the table to the position, has ended.

    :param pipeline: the pipeline's id.
    :param state_conn_id: the connection of the pipeline's state.
    :param table: ``[schema, name]``.
    :param position: a position in the source's WAL; None waits for the end of the task alone.
    :param run: the name of the run in the completion records.
    :param follows: the id of the task.
    """

    work = "airflow_provider_pgetl.triggers.waiting:caught_up"

    def __init__(
        self,
        pipeline: str,
        state_conn_id: str,
        table: list[str],
        position: str | None,
        run: str,
        follows: str,
        **_unknown: Any,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.state_conn_id = state_conn_id
        self.table = table
        self.position = position
        self.run_name = run
        self.follows = follows

    def stored(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "state_conn_id": self.state_conn_id,
            "table": self.table,
            "position": self.position,
            "run": self.run_name,
            "follows": self.follows,
        }
