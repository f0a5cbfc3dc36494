"""`PhaseSensor`: another DAG waits until a replicated table has reached a phase."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_pgetl.engine.model.phases import Errored, PhaseName, phase_name
from airflow_provider_pgetl.engine.model.tables import parse_table, written
from airflow_provider_pgetl.failures import errored
from airflow_provider_pgetl.sensors.base import WaitingSensor, look_at

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_pgetl.engine.monitoring.snapshots import PipelineSnapshot
    from airflow_provider_pgetl.triggers.base import PipelineTrigger

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
        from airflow_provider_pgetl.triggers.phase import PhaseTrigger

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
