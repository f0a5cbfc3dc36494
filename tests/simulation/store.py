"""The real store in memory, watched: what was superseded must have no effect."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_pgetl.engine.phases import Event, Refused, TableState, handover_of
from airflow_provider_pgetl.engine.state.memory import MemoryStore
from airflow_provider_pgetl.engine.tables import TableName
from tests.simulation.source import Violation


class WatchedStore(MemoryStore):
    """What it answers is what the real one answers."""

    def apply(
        self, events: Mapping[TableName, Event], *, epoch: int | None = None
    ) -> Mapping[TableName, TableState] | Refused:
        durable = self._durable.view
        before = {table: durable.tables[table].state for table in events}
        answer = super().apply(events, epoch=epoch)
        if isinstance(answer, Refused) or answer == before:
            return answer
        if epoch is not None and epoch != durable.pipeline.epoch:
            raise Violation(f"epoch {epoch} has moved tables after epoch {durable.pipeline.epoch} had begun")
        for table, event in events.items():
            if answer[table] != before[table]:
                _expect_present(table, event, before[table])
        return answer


def _expect_present(table: TableName, event: Event, before: TableState) -> None:
    if event.generation != before.generation:
        raise Violation(f"{event} has moved {table}, which is of generation {before.generation}")
    handover = getattr(event, "handover", None)
    if handover is not None and handover != handover_of(before):
        raise Violation(f"{event} has moved {table}, whose hand-over is number {handover_of(before)}")
