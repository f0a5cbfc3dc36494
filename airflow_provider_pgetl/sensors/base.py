"""What sensors for other DAGs share: they wait in the triggerer or, on request, by poking. They take the arguments of
Airflow's sensors (`timeout`, `soft_fail`, `never_fail`, `silent_fail`, `mode`, `poke_interval`, `exponential_backoff`),
with the same meaning."""

from __future__ import annotations

import logging
import time
import traceback
from abc import abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk.bases.sensor import BaseSensorOperator

from airflow_provider_pgetl.connections import STATE, value
from airflow_provider_pgetl.declarations import check_pipeline_id
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.failures import failure

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.engine.monitoring.snapshots import PipelineSnapshot
    from airflow_provider_pgetl.triggers.base import PipelineTrigger


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
