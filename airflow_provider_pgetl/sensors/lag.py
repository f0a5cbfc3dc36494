"""`LagSensor`: another DAG waits until the lag of a replica is within a limit."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_provider_pgetl.engine.monitoring.snapshots import LagLimit
from airflow_provider_pgetl.sensors.base import WaitingSensor, look_at

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.triggers.base import PipelineTrigger


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
        from airflow_provider_pgetl.triggers.lag import LagTrigger

        limit = LagLimit.parse(self.max_lag)
        return LagTrigger(self.pipeline, self.state_conn_id, limit.bytes, limit.seconds)

    def resume(self, context: Context, event: dict[str, Any], until: float | None = None) -> None:
        """Succeeds: the trigger has seen the lag within the limit, and it is not checked again."""
        del context, event, until
        self.log.info("The pipeline %s is within %s of its source.", self.pipeline, self.max_lag)
