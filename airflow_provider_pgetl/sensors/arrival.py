"""`finished_copy`, `sync_done`, `ready`: a table's way from its copy to the stream, a task for each station.

They wait on the store, in the triggerer, and say what for. What they do beside waiting is decided by a person's Clear:
see each. None of them ever copies a table again; that is `data_sync`'s.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.sdk import AssetAlias
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_pgetl.assets import replica_asset
from airflow_provider_pgetl.book import run_of, task_of
from airflow_provider_pgetl.engine.phases import (
    CATCHING_UP,
    ERRORED,
    Errored,
    Init,
    Phase,
    PhaseName,
    Ready,
    phase_name,
)
from airflow_provider_pgetl.failing import PgetlFailure, errored
from airflow_provider_pgetl.operators.base import TableOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.book import Page
    from airflow_provider_pgetl.engine.pipeline import Pipeline


class ArrivalSensor(TableOperator):
    """Waits until the table has come to one of `goal`, or is Errored, or set back to where only `data_sync` helps."""

    goal: ClassVar[frozenset[PhaseName]]
    retry: ClassVar[str]

    def execute(self, context: Context) -> None:
        with self.pipeline() as pipeline:
            self.go_back(pipeline, self.open_page(context, pipeline))
            self._judge(context, pipeline)

    def resume(self, context: Context, event: dict[str, Any]) -> None:
        with self.pipeline() as pipeline:
            if event.get("due"):
                self._roll_back_errored(pipeline)
            self._judge(context, pipeline)

    def go_back(self, pipeline: Pipeline, page: Page) -> None:
        """What a retry or a Clear moves, if anything."""

    def arrived(self, context: Context, pipeline: Pipeline) -> None:
        """What follows when the table has come there."""

    def _judge(self, context: Context, pipeline: Pipeline) -> None:
        phase = pipeline.state(self.table).phase
        if isinstance(phase, Errored):
            raise errored(self.table, phase, self.retry)
        if isinstance(phase, Init):
            raise PgetlFailure(
                f"{self.table} was set back to Init meanwhile. Clear its `data_sync` to have it copied again."
            )
        if phase_name(phase) not in self.goal:
            self._say(phase, pipeline)
            self._wait([*self.goal, "Errored", "Init"])
        self.log.info("%s is in %s.", self.table, phase_name(phase))
        self.arrived(context, pipeline)
        self.complete(context, pipeline)

    def _say(self, phase: Phase, pipeline: Pipeline) -> None:
        """What is waited for."""
        wanted = self.task_id.rpartition(".")[2]
        self.log.info("%s is in %s, and on its way to %s.", self.table, phase_name(phase), wanted)
        if pipeline.store.lease() is None:
            self.log.warning("`apply` is not running: %s waits until it does.", self.table)

    def _roll_back(self, pipeline: Pipeline, phases: frozenset[PhaseName]) -> None:
        """From one of `phases`: where the table has left them meanwhile, what it has come to is judged instead."""
        state = pipeline.rollback_from(phases, self.table)
        self.log.info("%s goes on from %s.", self.table, phase_name(state.phase))
        if isinstance(state.phase, Init):
            raise AirflowFailException(
                f"{self.table} is back in Init, from where it must be copied again. Clear its `data_sync`, which does "
                "that; this task follows by itself."
            )

    def _roll_back_errored(self, pipeline: Pipeline) -> None:
        """A timed retry is waited for; all else somebody has settled, or this would not have been started again. The
        streaming worker makes timed retries as well: one that it has made is not made a second time."""
        phase = pipeline.state(self.table).phase
        if not isinstance(phase, Errored):
            return
        due = phase.retry_policy.at
        if due is not None and due > time.time():
            self.log.info("%s is Errored until %s: %s", self.table, datetime.fromtimestamp(due, UTC), phase.reason)
            everything_else = [*CATCHING_UP, *self.goal, "Init"]
            self._wait(everything_else, until=due)
        self._roll_back(pipeline, ERRORED)

    def _wait(self, phases: list[Any], until: float | None = None) -> NoReturn:
        from airflow_provider_pgetl.triggers.phase import PhaseTrigger

        place = [self.table.schema, self.table.name]
        state = self.replication.connections.state
        trigger = PhaseTrigger(self.replication.spec.id, state, place, sorted(set(phases)), until)
        self.defer(trigger=trigger, method_name="resume", timeout=None)
        raise AssertionError("deferring raises")


class FinishedCopySensor(ArrivalSensor):
    """Every row of the snapshot is in the destination. Cleared, it checks again and moves nothing."""

    goal = CATCHING_UP | {"SyncDone", "Ready"}
    retry = "A retry of this task checks again; clear `data_sync` to have the table copied again."


class SyncDoneSensor(ArrivalSensor):
    """The table has caught up. Retried or cleared before that, the catch-up starts again from the finished copy;
    cleared after it, it checks."""

    goal = frozenset({"SyncDone", "Ready"})
    retry = "A retry of this task starts the catch-up again, from the finished copy if there still is one."

    def go_back(self, pipeline: Pipeline, page: Page) -> None:
        if not page.is_repeated:
            return
        name = phase_name(pipeline.state(self.table).phase)
        if name in CATCHING_UP:
            self._roll_back(pipeline, CATCHING_UP)
        elif name in self.goal:
            self.log.info("%s has caught up. To have it copied again, clear its `data_sync`.", self.table)
        else:
            self._roll_back_errored(pipeline)


class ReadySensor(ArrivalSensor):
    """The apply stream owns the table. Retried or cleared, an Errored table goes back to its last safe phase.

    :param announce: raise an asset event for the table when this run has brought it here.
    """

    goal = frozenset({"Ready"})
    retry = "A retry of this task rolls the table back to its last safe phase."

    def __init__(self, *, announce: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.announce = announce
        self.alias = AssetAlias(f"pgetl {self.replication.spec.id} {self.table}")
        if announce:
            self.outlets = [*self.outlets, self.alias]

    def go_back(self, pipeline: Pipeline, page: Page) -> None:
        if page.is_repeated:
            self._roll_back_errored(pipeline)

    def arrived(self, context: Context, pipeline: Pipeline) -> None:
        """A run that only finds the table Ready has no news. By way of an alias: a plain outlet is news each time."""
        since = pipeline.store.history(self.table)[-1].at
        known = pipeline.store.completions(run_of(context))
        if self.announce and since >= max(known.get(self.before[0], 0.0), known.get(task_of(context), 0.0)):
            asset = replica_asset(self.replication.spec.id, str(self.table))
            context["outlet_events"][self.alias].add(asset, extra={"phase": Ready.__name__, "since": since})
