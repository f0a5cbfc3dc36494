"""What sensors for other DAGs share: they wait in the triggerer or, on request, by poking. They take the arguments of
Airflow's sensors (`timeout`, `soft_fail`, `never_fail`, `silent_fail`, `mode`, `poke_interval`, `exponential_backoff`),
with the same meaning."""

from __future__ import annotations

import logging
import time
import traceback
from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk.bases.sensor import BaseSensorOperator

from airflow_provider_pgetl.connections import STATE, value
from airflow_provider_pgetl.declarations import check_pipeline_id
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import Errored, PhaseName, phase_name
from airflow_provider_pgetl.engine.model.tables import parse_table, written
from airflow_provider_pgetl.engine.monitoring.snapshots import LagLimit
from airflow_provider_pgetl.failures import errored, failure

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.engine.monitoring.snapshots import PipelineSnapshot
    from airflow_provider_pgetl.triggers.pgetl import PipelineTrigger


class WaitingSensor(BaseSensorOperator):
    """Checks the condition once, then waits without occupying a worker slot.

    :param deferrable: True waits in the triggerer; False checks the condition again and again, by `mode` and
        `poke_interval`. By default True, or False if `mode` or `poke_interval` is given.
    :param mode: as for any sensor.
    :param poke_interval: as for any sensor.
    """

    ui_color = "#e7f0ec"

    def __init__(
        self,
        *,
        deferrable: bool | None = None,
        mode: str | None = None,
        poke_interval: timedelta | float | None = None,
        **kwargs: Any,
    ) -> None:
        given: dict[str, Any] = {
            name: value for name, value in (("mode", mode), ("poke_interval", poke_interval)) if value is not None
        }
        super().__init__(**given, **kwargs)
        self.deferrable = not given if deferrable is None else deferrable

    @abstractmethod
    def poke(self, context: Context) -> bool:
        """Returns whether the condition holds."""

    @abstractmethod
    def trigger(self) -> PipelineTrigger:
        """Returns the trigger that waits for the condition."""

    def execute(self, context: Context) -> Any:
        if not self.deferrable:
            return super().execute(context)
        self._wait(context, time.time() + self.timeout)
        return None

    def resume(self, context: Context, event: dict[str, Any], until: float | None = None) -> None:
        """Checks the condition again after the trigger has fired; only this check decides. `until`: when the sensor
        times out, in seconds since the Unix epoch; None if an earlier version has deferred."""
        del event
        self._wait(context, time.time() + self.timeout if until is None else until)

    def _wait(self, context: Context, until: float) -> None:
        """Defers again if the condition does not hold any more; the timeout covers all waits together."""
        if self._look(context):
            return
        left = timedelta(seconds=max(0.0, until - time.time()))
        self.defer(trigger=self.trigger(), method_name="resume", kwargs={"until": until}, timeout=left)

    def _look(self, context: Context) -> bool:
        """Calls `poke`, and treats its exceptions as a sensor that pokes does."""
        try:
            return self.poke(context)
        except AirflowFailException as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(f"Skipped, though it failed: {error}") from error
            raise
        except Exception as error:
            if self.never_fail:
                raise AirflowSkipException(f"Skipped, though it failed: {error}") from error
            if not self.silent_fail:
                raise
            self.log.error("It could not be looked at:\n%s", traceback.format_exc())
            return False


# -- The check that a sensor makes before it waits, by a pipeline's id and the connection of its state alone. ----------

log = logging.getLogger(__name__)


def look_at(pipeline: str, state_conn_id: str) -> PipelineSnapshot | None:
    """Returns None if there is no such pipeline yet, or if the database is out of reach: both may be temporary. Changes
    nothing."""
    from airflow_provider_pgetl.engine.monitoring.snapshots import look

    try:
        check_pipeline_id(pipeline)
        return look(value(STATE, state_conn_id), pipeline)
    except PgetlError as error:
        if error.transient:
            log.warning("%s It is waited for.", error.message)
            return None
        raise failure(error) from error


# -- `PhaseSensor`: another DAG waits until a replicated table has reached a phase. ------------------------------------

# A phase counts as reached in it and in all phases after it.
_ORDER: tuple[PhaseName, ...] = tuple(name for name in get_args(PhaseName) if name != "Errored")
_RETRY = "A retry of this sensor looks again."


class PhaseSensor(WaitingSensor):
    """Waits, without occupying a worker slot, until a table has reached a phase, or a later one.

    Fails where the table is Errored, and where the pipeline has no such table (with `soft_fail`, is skipped instead).
    Waits for a pipeline that has never run. `deferrable=False`, `mode` and `poke_interval` are those of any sensor.

    :param pipeline: the pipeline's id.
    :param table: ``schema.table``, as it is declared.
    :param phase: the phase to wait for.
    :param state_conn_id: the Airflow postgres connection of the pipeline's state (by default that of its source).
    """

    template_fields: Sequence[str] = ("pipeline", "table", "phase", "state_conn_id")

    def __init__(
        self, *, pipeline: str, table: str, state_conn_id: str, phase: PhaseName = "Ready", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.table = table
        self.phase = phase
        self.state_conn_id = state_conn_id

    def poke(self, context: Context) -> bool:
        del context
        return self._judge(look_at(self.pipeline, self.state_conn_id))

    def trigger(self) -> PipelineTrigger:
        from airflow_provider_pgetl.triggers.pgetl import PhaseTrigger

        name = parse_table(self.table)
        return PhaseTrigger(self.pipeline, self.state_conn_id, [name.schema, name.name], [*self._goal(), "Errored"])

    def _goal(self) -> tuple[PhaseName, ...]:
        if self.phase not in _ORDER:
            raise AirflowFailException(f"There is no phase {self.phase!r} to wait for; there are {', '.join(_ORDER)}.")
        return _ORDER[_ORDER.index(self.phase) :]

    def _judge(self, picture: PipelineSnapshot | None) -> bool:
        goal = self._goal()
        if picture is None:
            self.log.info("Nothing is known yet of the pipeline %s.", self.pipeline)
            return False
        name = parse_table(self.table)
        state = picture.states.get(name)
        if state is None:
            there = ", ".join(map(written, sorted(picture.states))) or "none"
            raise AirflowFailException(
                f"The pipeline {self.pipeline} has no table {self.table}. There are: {there}. Name one of those, or "
                "declare it and let the pipeline run."
            )
        if isinstance(state.phase, Errored):
            raise errored(name, state.phase, _RETRY)
        self.log.info("%s is in %s.", name, phase_name(state.phase))
        if not picture.streamed and phase_name(state.phase) not in goal:
            self.log.info("`apply` of the pipeline %s is not running.", self.pipeline)
        return phase_name(state.phase) in goal


# -- `LagSensor`: another DAG waits until the lag of a replica is within a limit. --------------------------------------


class LagSensor(WaitingSensor):
    """Waits, without occupying a worker slot, until the pipeline's `apply` runs and is within `max_lag` of the source.

    It does not consider tables that are not Ready yet; `PhaseSensor` does. `deferrable=False`, `mode` and
    `poke_interval` are those of any sensor.

    :param pipeline: the pipeline's id.
    :param max_lag: a time (`timedelta`, or text like ``"10s"``), or an amount of WAL not applied yet, like ``"16MiB"``.
    :param state_conn_id: the Airflow postgres connection of the pipeline's state (by default that of its source).
    """

    template_fields: Sequence[str] = ("pipeline", "max_lag", "state_conn_id")

    def __init__(self, *, pipeline: str, max_lag: str | timedelta, state_conn_id: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pipeline = pipeline
        self.max_lag = max_lag
        self.state_conn_id = state_conn_id

    def poke(self, context: Context) -> bool:
        del context
        picture = look_at(self.pipeline, self.state_conn_id)
        if picture is not None and LagLimit.parse(self.max_lag).holds(picture):
            self.log.info("The pipeline %s is within %s of its source.", self.pipeline, self.max_lag)
            return True
        if picture is None or not picture.streamed:
            self.log.info("`apply` of the pipeline %s is not running.", self.pipeline)
        return False

    def trigger(self) -> PipelineTrigger:
        from airflow_provider_pgetl.triggers.pgetl import LagTrigger

        limit = LagLimit.parse(self.max_lag)
        return LagTrigger(self.pipeline, self.state_conn_id, limit.bytes, limit.seconds)

    def resume(self, context: Context, event: dict[str, Any], until: float | None = None) -> None:
        """Succeeds: the trigger has seen the lag within the limit, and it is not checked again."""
        del context, event, until
        self.log.info("The pipeline %s is within %s of its source.", self.pipeline, self.max_lag)
