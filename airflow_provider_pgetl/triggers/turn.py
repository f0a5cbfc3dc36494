"""The trigger that waits until a table that is to be copied can be: until there is room, or another has copied it."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl.triggers.base import PipelineTrigger


class TurnTrigger(PipelineTrigger):
    """Fires when there is something to do for `data_sync`; with `not_before` (seconds since the Unix epoch), then; or
    when nobody streams, and so nobody makes room (`waiting`).

    :param room: how many groups may be copied or catch up at once.
    :param run: as for `PhaseTrigger`, and so are `apply` and `grace`.
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
