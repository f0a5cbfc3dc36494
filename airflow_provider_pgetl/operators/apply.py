"""`apply`: the streaming worker, for as long as it is wanted, without occupying a worker slot."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgetl.assets import source_asset
from airflow_provider_pgetl.book import run_of
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.failing import failure
from airflow_provider_pgetl.operators.announcing import AnnouncingOperator
from airflow_provider_pgetl.operators.base import TableOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


_GAPS = (ErrorKind.SLOT_LOST.value, ErrorKind.LINEAGE.value)


class ApplyOperator(AnnouncingOperator):
    """Defers at once to `ApplyTrigger`, which supervises the worker's process.

    Where changes land to be merged by a task of their own, that task has the news.

    :param until: ``"caught_up"`` ends when everything committed before the start is durable and no table is on its way;
        None streams on.
    :param rotate_after: ends a run that streams on, cleanly, so that the next run takes over and logs are uploaded.
    """

    def __init__(
        self,
        *,
        until: Literal["caught_up"] | None = None,
        rotate_after: timedelta | None = timedelta(days=1),
        **kwargs: Any,
    ) -> None:
        lands = kwargs["replication"].spec.destination.lands
        super().__init__(announces=until == "caught_up" and not lands, **kwargs)
        source = self.replication.connections.source
        self.inlets = [*self.inlets, *(source_asset(source, table) for table in self.replication.tables)]
        self.copiers: list[TableOperator] = []
        self.until = until
        self.rotate_after = rotate_after

    def execute(self, context: Context) -> None:
        from airflow_provider_pgetl.triggers.apply import ApplyTrigger
        from airflow_provider_pgetl.triggers.orphans import Copier

        rotate_at = None if self.rotate_after is None else time.time() + self.rotate_after.total_seconds()
        trigger = ApplyTrigger(
            self.replication.as_json(),
            until_caught_up=self.until == "caught_up",
            rotate_at=None if self.until else rotate_at,
            run=run_of(context),
            copiers=[Copier(one.table, one.task_id, one.before).as_json() for one in self.copiers],
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=None)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> str:
        """What the trigger's end means."""
        if event["status"] == "copy_needed":
            self._say_who_is_left(event["tables"])
        if self._begins_anew(event):
            self.log.warning("%s The run ends, and the next one copies again what is concerned.", event["message"])
            return "begin_anew"
        if event["status"] == "failed":
            raise failure(PgetlError(ErrorKind(event["kind"]), event["message"], remedy=event["remedy"] or None))
        with self.pipeline() as pipeline:
            if event["status"] == "caught_up":
                self.announce(context, pipeline)
            self.complete(context, pipeline)
        self.log.info("The stream ended: %s.", event["status"].replace("_", " "))
        return str(event["status"])

    def _begins_anew(self, event: dict[str, Any]) -> bool:
        """A gap to be made good by copying again: where runs follow each other, the `prepare` of the next does that."""
        gap = event["status"] == "failed" and event["kind"] in _GAPS
        return gap and self.until is None and self.replication.spec.source.on_slot_lost == "resync"

    def _say_who_is_left(self, tables: list[str]) -> None:
        """Nobody is left in this run to copy them: the next run does. A run that was to catch up has not."""
        said = f"{', '.join(tables)} must be copied, and no task of this run is left to do it."
        if self.until == "caught_up":
            raise AirflowFailException(
                f"{said} Where a `data_sync` has failed, its log says why. The next run copies them, or clear "
                "`data_sync` and `apply` now."
            )
        self.log.warning("%s The run ends, and the next one does it.", said)
