"""The trigger that waits until a table reaches a phase; the task that resumes checks the result."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl.triggers.base import TableTrigger


class PhaseTrigger(TableTrigger):
    """Fires when the table is in one of `phases`, or does not exist any more; at the time `until`, if there is one; or
    when no stream will bring the table further in its run (`waiting`).

    :param phases: the names of the phases.
    :param until: seconds since the Unix epoch, or None.
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
        super().__init__(pipeline, state_conn_id, table, run, apply, grace)
        self.phases = phases
        self.until = until

    def stored(self) -> dict[str, Any]:
        return {**super().stored(), "phases": self.phases, "until": self.until}
