"""The trigger of an asset watcher, which fires while the stream brings changes."""

from __future__ import annotations

from typing import Any

from airflow.triggers.base import BaseEventTrigger

from airflow_provider_pgetl.triggers.base import PipelineTrigger


class ChangesTrigger(PipelineTrigger, BaseEventTrigger):
    """Fires each time that the replica of a table has changed; at most once in `at_most_every` seconds.

    :param pipeline: the pipeline's id.
    :param state_conn_id: the connection of the pipeline's state.
    :param table: ``[schema, name]``.
    :param at_most_every: in seconds; changes within this time are one event.
    """

    work = "airflow_provider_pgetl.triggers.watchers:announce_changes"

    def __init__(
        self, pipeline: str, state_conn_id: str, table: list[str], at_most_every: float, **_unknown: Any
    ) -> None:
        super().__init__()
        self.pipeline = pipeline
        self.state_conn_id = state_conn_id
        self.table = table
        self.at_most_every = at_most_every

    def stored(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "state_conn_id": self.state_conn_id,
            "table": self.table,
            "at_most_every": self.at_most_every,
        }
