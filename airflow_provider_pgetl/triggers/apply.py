"""The trigger that keeps the streaming worker running; `supervising` describes how."""

from __future__ import annotations

from typing import Any

from airflow_provider_pgetl.triggers.base import PipelineTrigger


class ApplyTrigger(PipelineTrigger):
    """Streams until the pipeline has caught up, or until `rotate_at` (seconds since the Unix epoch), or for ever.

    :param replication: the declaration, with the ids of connections and no secret.
    :param until_caught_up: whether the stream ends when the pipeline has caught up.
    :param rotate_at: when the stream ends so that the next run takes over; None: never.
    :param run: the name of the run in the completion records.
    :param copiers: the tasks of the run that copy (`supervision.Copier`). A table that is to be copied, and that none
        of them will copy any more, ends the stream too.
    :param tells: whether a table that becomes Errored interrupts the stream, so that a worker calls the callbacks.
    :param told: the occasions (`ErroredTable.mark`) for which callbacks have been called already.
    :param fail_after: for how many seconds a table may be Errored before that ends the stream; None for ever.
    :param callbacks: `AsyncCallback`s, as they are serialised, that are called in the triggerer instead, without
        interrupting the stream.
    """

    work = "airflow_provider_pgetl.triggers.supervising:supervise"

    def __init__(
        self,
        replication: dict[str, Any],
        until_caught_up: bool = False,
        rotate_at: float | None = None,
        run: str = "",
        copiers: list[Any] | None = None,
        tells: bool = False,
        told: list[Any] | None = None,
        fail_after: float | None = None,
        callbacks: list[Any] | None = None,
        **_unknown: Any,
    ) -> None:
        super().__init__()
        self.replication = replication
        self.until_caught_up = until_caught_up
        self.rotate_at = rotate_at
        self.run_name = run
        self.copiers = copiers or []
        self.tells = tells
        self.told = told or []
        self.fail_after = fail_after
        self.callbacks = callbacks or []

    def stored(self) -> dict[str, Any]:
        return {
            "replication": self.replication,
            "until_caught_up": self.until_caught_up,
            "rotate_at": self.rotate_at,
            "run": self.run_name,
            "copiers": self.copiers,
            "tells": self.tells,
            "told": self.told,
            "fail_after": self.fail_after,
            "callbacks": self.callbacks,
        }
