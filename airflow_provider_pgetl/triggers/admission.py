"""The trigger that waits until a table that is to be copied can be: until its copy is admitted, or another task has
copied it."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl.triggers.base import TableTrigger


class AdmissionTrigger(TableTrigger):
    """Fires when `data_sync` has something to do for the table; at the time `not_before`, if there is one; or when no
    worker streams, so that no copy will be admitted (`waiting`).

    :param capacity: how many groups may be copied or catch up at once.
    :param not_before: seconds since the Unix epoch; None waits for the table instead of a time.
    """

    work = "airflow_provider_pgetl.triggers.waiting:admission"

    def __init__(
        self,
        pipeline: str,
        state_conn_id: str,
        table: list[str],
        capacity: int,
        not_before: float | None = None,
        run: str = "",
        apply: str = "",
        grace: float = 180.0,
        **_unknown: Any,
    ) -> None:
        super().__init__(pipeline, state_conn_id, table, run, apply, grace)
        self.capacity = capacity
        self.not_before = not_before

    def stored(self) -> dict[str, Any]:
        return {**super().stored(), "capacity": self.capacity, "not_before": self.not_before}
