"""The trigger that waits until a table that is to be copied can be: until its copy is admitted, or another task has
copied it."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl.triggers.base import PipelineTrigger


class TurnTrigger(PipelineTrigger):
    """Fires when `data_sync` has something to do for the table; at the time `not_before`, if there is one; or when no
    worker streams, so that no copy will be admitted (`waiting`).

    :param pipeline: the pipeline's id.
    :param state_conn_id: the connection of the pipeline's state.
    :param table: ``[schema, name]``.
    :param room: how many groups may be copied or catch up at once.
    :param not_before: seconds since the Unix epoch; None waits for the table instead of a time.
    :param run: as for `PhaseTrigger`.
    :param apply: as for `PhaseTrigger`.
    :param grace: as for `PhaseTrigger`.
    """

    work = "airflow_provider_pgetl.triggers.waiting:turn"

    def __init__(
        self,
        pipeline: str,
        state_conn_id: str,
        table: list[str],
        room: int,
        not_before: float | None = None,
        run: str = "",
        apply: str = "",
        grace: float = 180.0,
        **_unknown: Any,
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.state_conn_id = state_conn_id
        self.table = table
        self.room = room
        self.not_before = not_before
        self.run_name = run
        self.apply = apply
        self.grace = grace

    def stored(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "state_conn_id": self.state_conn_id,
            "table": self.table,
            "room": self.room,
            "not_before": self.not_before,
            "run": self.run_name,
            "apply": self.apply,
            "grace": self.grace,
        }
