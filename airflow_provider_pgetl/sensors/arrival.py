"""`finished_copy`, `sync_done`, `ready`: a table's way from its copy to the stream, a task for each station.

They wait on the store, in the triggerer, and say what for. What they do beside waiting is decided by a person's Clear:
see each. None of them ever copies a table again; that is `data_sync`'s.

Only a stream brings a table further. Where nobody streams, and the run's `apply` has ended, they fail after a grace and
say what to clear; before anything is rolled back they look whether there is, or will be, a stream.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import AssetAlias

from airflow_provider_pgetl.assets import replica_asset
from airflow_provider_pgetl.completion_records import run_of, task_of
from airflow_provider_pgetl.engine.model.phases import (
    CATCHING_UP,
    ERRORED,
    Errored,
    Init,
    Phase,
    PhaseName,
    Ready,
    phase_name,
)
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.failures import PgetlFailure, errored, unstreamed
from airflow_provider_pgetl.operators.base import TableOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.completion_records import CompletionRecord
    from airflow_provider_pgetl.engine.pipeline import Pipeline


NOTHING: Mapping[str, Any] = {}


class ArrivalSensor(TableOperator):
    """Waits until the table has come to one of `goal`, or is Errored, or set back to where only `data_sync` helps."""

    goal: ClassVar[frozenset[PhaseName]]
    retry: ClassVar[str]
    rolls_back: ClassVar[bool] = True

    def execute(self, context: Context) -> Any:
        with self.pipeline("execute") as pipeline:
            self.go_back(context, pipeline, self.open_completion_record(context, pipeline))
            return self._judge(context, pipeline)

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        with self.pipeline("resume") as pipeline:
            if event.get("due"):
                self._roll_back_errored(context, pipeline)
            return self._judge(context, pipeline, event)

    def go_back(self, context: Context, pipeline: Pipeline, page: CompletionRecord) -> None:
        """What a retry or a Clear moves, if anything."""

    def arrived(self, context: Context, pipeline: Pipeline) -> Any:
        """What follows when the table has come there; what it answers is the task's XCom."""

    def _judge(self, context: Context, pipeline: Pipeline, event: Mapping[str, Any] = NOTHING) -> Any:
        phase = pipeline.state(self.table).phase
        if isinstance(phase, Errored):
            raise errored(self.table, phase, self.retry, self._cleared(phase))
        if isinstance(phase, Init):
            raise PgetlFailure(
                f"{self.table} was set back to Init meanwhile. Clear its `data_sync` to have it copied again."
            )
        if phase_name(phase) not in self.goal:
            if event.get("unstreamed"):
                raise unstreamed(self.table, phase_name(phase), self.apply, event)
            self._say(phase, pipeline)
            self._wait(context, [*self.goal, "Errored", "Init"])
        self.log.info("%s is in %s.", self.table, phase_name(phase))
        answer = self.arrived(context, pipeline)
        self.complete(context, pipeline)
        return answer

    def _cleared(self, phase: Errored) -> str:
        """What is to be cleared once the matter is settled: this task, if that leads back to the finished copy."""
        return "this task" if self.rolls_back and phase.from_phase in CATCHING_UP else "its `data_sync`"

    def _say(self, phase: Phase, pipeline: Pipeline) -> None:
        """What is waited for."""
        wanted = self.task_id.rpartition(".")[2]
        self.log.info("%s is in %s, and on its way to %s.", self.table, phase_name(phase), wanted)
        if pipeline.store.lease() is None:
            self.log.warning("`apply` is not running: %s waits until it does.", self.table)

    def _roll_back(self, context: Context, pipeline: Pipeline, phases: frozenset[PhaseName]) -> None:
        """From one of `phases`: where the table has left them meanwhile, what it has come to is judged instead."""
        self.expect_stream(context, pipeline)
        state = pipeline.rollback_from(phases, self.table)
        self.log.info("%s goes on from %s.", self.table, phase_name(state.phase))
        if isinstance(state.phase, Init):
            raise AirflowFailException(
                f"{self.table} is back in Init, from where it must be copied again. Clear its `data_sync`, which does "
                "that; this task follows by itself."
            )

    def _roll_back_errored(self, context: Context, pipeline: Pipeline) -> None:
        """A timed retry is waited for; all else somebody has settled, or this would not have been started again. The
        streaming worker makes timed retries as well: one that it has made is not made a second time."""
        phase = pipeline.state(self.table).phase
        if not isinstance(phase, Errored):
            return
        due = phase.retry_policy.at or 0.0
        left = due - pipeline.store.now()
        if left > 0:
            self.log.info("%s is Errored until %s: %s", self.table, datetime.fromtimestamp(due, UTC), phase.reason)
            everything_else = [*CATCHING_UP, *self.goal, "Init"]
            self._wait(context, everything_else, until=time.time() + left)
        self._roll_back(context, pipeline, ERRORED)

    def _wait(self, context: Context, phases: list[Any], until: float | None = None) -> NoReturn:
        from airflow_provider_pgetl.triggers.phase import PhaseTrigger

        place = [self.table.schema, self.table.name]
        state = self.replication.connections.state
        stream = self.waiting_for_stream(context)
        trigger = PhaseTrigger(self.replication.spec.id, state, place, sorted(set(phases)), until, **stream)
        self.defer(trigger=trigger, method_name="resume", timeout=None)
        raise AssertionError("deferring raises")


class FinishedCopySensor(ArrivalSensor):
    """Every row of the snapshot is in the destination. Cleared, it checks again and moves nothing."""

    goal = CATCHING_UP | {"SyncDone", "Ready"}
    retry = "A retry of this task checks again; clear `data_sync` to have the table copied again."
    rolls_back = False


class SyncDoneSensor(ArrivalSensor):
    """The table has caught up. Retried or cleared before that, the catch-up starts again from the finished copy;
    cleared after it, it checks."""

    goal = frozenset({"SyncDone", "Ready"})
    retry = "A retry of this task starts the catch-up again, from the finished copy if there still is one."

    def go_back(self, context: Context, pipeline: Pipeline, page: CompletionRecord) -> None:
        if not page.is_repeated:
            return
        name = phase_name(pipeline.state(self.table).phase)
        if name in CATCHING_UP:
            self._roll_back(context, pipeline, CATCHING_UP)
        elif name in self.goal:
            self.log.info("%s has caught up. To have it copied again, clear its `data_sync`.", self.table)
        else:
            self._roll_back_errored(context, pipeline)


class ReadySensor(ArrivalSensor):
    """The apply stream owns the table. Retried or cleared, an Errored table goes back to its last safe phase.

    In a run that is to catch up, a table that was Ready before it is waited for until what was committed at the source
    when this task began is in the destination: so what follows this task sees it, whatever becomes of other tables.

    Its XCom says where the table is: ``position``, ``copied_rows``, ``lag_bytes``, ``lag_seconds``.

    :param announce: raise an asset event for the table when this run has brought it here.
    :param follows: the id of the task at whose end the run has caught up; None in a run that streams on.
    """

    goal = frozenset({"Ready"})
    retry = "A retry of this task rolls the table back to its last safe phase."

    def __init__(self, *, announce: bool = True, follows: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.announce = announce
        self.follows = follows
        self.alias = AssetAlias(f"pgetl {self.replication.spec.id} {self.table}")
        if announce:
            self.outlets = [*self.outlets, self.alias]

    def go_back(self, context: Context, pipeline: Pipeline, page: CompletionRecord) -> None:
        if page.is_repeated:
            self._roll_back_errored(context, pipeline)

    def arrived(self, context: Context, pipeline: Pipeline) -> dict[str, Any]:
        """A run that only finds the table Ready has no news. By way of an alias: a plain outlet is news each time."""
        since = pipeline.store.history(self.table)[-1].at
        known = pipeline.store.completions(run_of(context))
        prepared = known.get(self.before[0], 0.0)
        if self.follows is not None and since < prepared and known.get(self.follows, 0.0) < prepared:
            self._await_the_run(context, pipeline, self.follows)
        if self.announce and since >= max(prepared, known.get(task_of(context), 0.0)):
            asset = replica_asset(self.replication.spec.id, str(self.table))
            context["outlet_events"][self.alias].add(asset, extra={"phase": Ready.__name__, "since": since})
        return pipeline.whereabouts(self.table).as_json()

    def caught_up(self, context: Context, event: dict[str, Any]) -> Any:
        """What was waited for has come, or will not come any more."""
        with self.pipeline("execute") as pipeline:
            if not isinstance(pipeline.state(self.table).phase, Ready):
                return self._judge(context, pipeline)
            there = pipeline.whereabouts(self.table)
            is_there = event["position"] is not None and there.position >= Boundary.parse(event["position"])
            if event["ended"] and not is_there:
                self._expect_the_run(context, pipeline)
            self.complete(context, pipeline)
            return there.as_json()

    def _await_the_run(self, context: Context, pipeline: Pipeline, follows: str) -> None:
        """Defer, unless everything is there already. What lands to be merged is not seen before the merge."""
        from airflow_provider_pgetl.triggers.caught_up import CaughtUpTrigger

        lands = self.replication.spec.destination.lands
        position = None if lands else pipeline.source_position()
        if position is not None and pipeline.whereabouts(self.table).position >= position:
            return
        self.log.info("%s waits for what was committed before this task began, or for `%s`.", self.table, follows)
        trigger = CaughtUpTrigger(
            self.replication.spec.id,
            self.replication.connections.state,
            [self.table.schema, self.table.name],
            None if position is None else str(position),
            run_of(context),
            follows,
        )
        self.defer(trigger=trigger, method_name="caught_up", timeout=None)

    def _expect_the_run(self, context: Context, pipeline: Pipeline) -> None:
        """The task that was followed has ended: it must have caught up."""
        known = pipeline.store.completions(run_of(context))
        if known.get(str(self.follows), -1.0) < known.get(self.before[0], 0.0):
            raise PgetlFailure(
                f"`{self.follows}` has ended before {self.table} had caught up. Clear it, and then this task."
            )
