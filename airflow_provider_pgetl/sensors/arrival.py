"""`finished_copy`, `sync_done`, `ready`: a table's way from its copy to the stream, with a task for each phase on it.

They wait in the triggerer, by the pipeline's store, and log what they wait for. What they do besides waiting depends on
whether a person has cleared them: see each. None of them ever copies a table again; only `data_sync` does.

Only a stream brings a table further. Where no worker streams, and the run's `apply` has ended, they fail after `grace`
seconds and name what to clear; before they roll anything back they check that there is, or will be, a stream.
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
    """Waits until the table is in one of the phases `goal`, is Errored, or was set back to where only `data_sync`
    helps."""

    goal: ClassVar[frozenset[PhaseName]]
    retry: ClassVar[str]
    rolls_back: ClassVar[bool] = True

    def execute(self, context: Context) -> Any:
        with self.pipeline("execute") as pipeline:
            self.go_back(context, pipeline, self.open_completion_record(context, pipeline))
            return self._judge(context, pipeline)

    def resume(self, context: Context, event: dict[str, Any]) -> Any:
        with self.pipeline("resume", event=event) as pipeline:
            if event.get("due"):
                self._roll_back_errored(context, pipeline)
                del event["due"]  # done: it is not to be done again after an outage
            return self._judge(context, pipeline, event)

    def go_back(self, context: Context, pipeline: Pipeline, record: CompletionRecord) -> None:
        """Rolls the table back on a retry or a Clear, where the sensor does that."""

    def arrived(self, context: Context, pipeline: Pipeline) -> Any:
        """Called when the table has reached the goal. The result is the task's XCom."""

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
        """Returns what has to be cleared once the cause is settled: this task, if that leads back to the finished
        copy."""
        return "this task" if self.rolls_back and phase.from_phase in CATCHING_UP else "its `data_sync`"

    def _say(self, phase: Phase, pipeline: Pipeline) -> None:
        """Logs what is waited for."""
        wanted = self.task_id.rpartition(".")[2]
        self.log.info("%s is in %s, and on its way to %s.", self.table, phase_name(phase), wanted)
        if not pipeline.is_streamed:
            self.log.warning("`apply` is not running: %s waits until it does.", self.table)

    def _roll_back(self, context: Context, pipeline: Pipeline, phases: frozenset[PhaseName]) -> None:
        """Rolls the table back from one of `phases`; if it has left them in the meantime, its new phase is judged
        instead."""
        self.expect_stream(context, pipeline)
        state = pipeline.rollback_from(phases, self.table)
        self.log.info("%s goes on from %s.", self.table, phase_name(state.phase))
        if isinstance(state.phase, Init):
            raise AirflowFailException(
                f"{self.table} is back in Init, from where it must be copied again. Clear its `data_sync`, which does "
                "that; this task follows by itself."
            )

    def _roll_back_errored(self, context: Context, pipeline: Pipeline) -> None:
        """Rolls an Errored table back. It waits until a timed retry is due; any other cause has been settled by a
        person, or this task would not have been started again. The streaming worker makes timed retries as well: one
        that it has made is not made a second time."""
        phase = pipeline.state(self.table).phase
        if not isinstance(phase, Errored):
            return
        due = phase.retry_policy.at or 0.0
        left = due - pipeline.now()
        if left > 0:
            self.log.info("%s is Errored until %s: %s", self.table, datetime.fromtimestamp(due, UTC), phase.reason)
            everything_else = [*CATCHING_UP, *self.goal, "Init"]
            self._wait(context, everything_else, until=time.time() + left)
        self._roll_back(context, pipeline, ERRORED)

    def _wait(self, context: Context, phases: list[Any], until: float | None = None) -> NoReturn:
        from airflow_provider_pgetl.triggers.pgetl import PhaseTrigger

        place = [self.table.schema, self.table.name]
        state = self.replication.connections.state
        stream = self.waiting_for_stream(context)
        trigger = PhaseTrigger(self.replication.spec.id, state, place, sorted(set(phases)), until, **stream)
        self.defer(trigger=trigger, method_name="resume", timeout=None)
        raise AssertionError("deferring raises")


class FinishedCopySensor(ArrivalSensor):
    """Waits until every row of the snapshot is in the destination. When it is cleared, it checks again and changes
    nothing."""

    goal = CATCHING_UP | {"SyncDone", "Ready"}
    retry = "A retry of this task checks again; clear `data_sync` to have the table copied again."
    rolls_back = False


class SyncDoneSensor(ArrivalSensor):
    """Waits until the table has caught up. When it is retried or cleared before that, the catch-up starts again from
    the finished copy; when it is cleared after it, it checks."""

    goal = frozenset({"SyncDone", "Ready"})
    retry = "A retry of this task starts the catch-up again, from the finished copy if there still is one."

    def go_back(self, context: Context, pipeline: Pipeline, record: CompletionRecord) -> None:
        if not record.is_repeated:
            return
        name = phase_name(pipeline.state(self.table).phase)
        if name in CATCHING_UP:
            self._roll_back(context, pipeline, CATCHING_UP)
        elif name in self.goal:
            self.log.info("%s has caught up. To have it copied again, clear its `data_sync`.", self.table)
        else:
            self._roll_back_errored(context, pipeline)


class ReadySensor(ArrivalSensor):
    """Waits until the table is part of the apply stream. When it is retried or cleared, it rolls an Errored table back
    to its last safe phase.

    In a run `until="caught_up"`, for a table that was Ready before the run, it waits until what was committed at the
    source when this task began is in the destination: the tasks that follow this one see it, whatever happens to other
    tables.

    Its XCom says where the table is: ``position``, ``copied_rows``, ``lag_bytes``, ``lag_seconds``.

    :param announce: update the table's asset when this run has brought the table to Ready.
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

    def go_back(self, context: Context, pipeline: Pipeline, record: CompletionRecord) -> None:
        if record.is_repeated:
            self._roll_back_errored(context, pipeline)

    def arrived(self, context: Context, pipeline: Pipeline) -> dict[str, Any]:
        """Waits for the run to catch up where it must, and updates the asset if this run brought the table to Ready; a
        run that only finds the table Ready does not. The event is added through an alias, as a plain outlet would send
        one each time."""
        since = pipeline.since()[self.table]
        known = pipeline.completion_records.completions(run_of(context))
        prepared = known.get(self.before[0], 0.0)
        if self.follows is not None and since < prepared and known.get(self.follows, 0.0) < prepared:
            self._await_the_run(context, pipeline, self.follows)
        if self.announce and since >= max(prepared, known.get(task_of(context), 0.0)):
            asset = replica_asset(self.replication.spec.id, str(self.table))
            context["outlet_events"][self.alias].add(asset, extra={"phase": Ready.__name__, "since": since})
        return pipeline.whereabouts(self.table).as_json()

    def caught_up(self, context: Context, event: dict[str, Any]) -> Any:
        """Continues when the trigger has fired: the table has caught up, or never will in this run."""
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
        """Defers, unless the table has caught up already. What lands to be merged is not visible to readers before the
        merge."""
        from airflow_provider_pgetl.triggers.pgetl import CaughtUpTrigger

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
        """Raises unless the task `follows`, which has ended, had caught up."""
        known = pipeline.completion_records.completions(run_of(context))
        if known.get(str(self.follows), -1.0) < known.get(self.before[0], 0.0):
            raise PgetlFailure(
                f"`{self.follows}` has ended before {self.table} had caught up. Clear it, and then this task."
            )
