"""The real store in memory, watched (what was superseded must have no effect), and a client's way to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_pgetl.engine.model.phases import CopyFinished, Event, Refused, TableState, handover_of
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.memory_store import MemoryStore
from airflow_provider_pgetl.engine.state.store import Store
from tests.simulation.threads import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

_CACHED = frozenset(
    {
        "applied_destination_metadata",
        "changed_tables",
        "close",
        "destination_metadata",
        "measurements",
        "now",
        "pipeline",
        "record_measurement",
        "schema",
        "schemas",
        "tables",
    }
)
_READS = frozenset(
    {
        "load",
        "progress",
        "lease",
        "lag",
        "history",
        "live_attempts",
        "attempt_holders",
        "completions",
        "seen",
        "last_attempt",
    }
)


class WatchedStore(MemoryStore):
    """What it answers is what the real one answers."""

    world: World

    def apply(
        self, events: Mapping[TableName, Event], *, epoch: int | None = None
    ) -> Mapping[TableName, TableState] | Refused:
        durable = self._durable.view
        before = {table: durable.tables[table].state for table in events if table in durable.tables}
        answer = super().apply(events, epoch=epoch)
        if isinstance(answer, Refused) or answer == before:
            return answer
        if epoch is not None and epoch != durable.pipeline.epoch:
            self.world.violate(f"epoch {epoch} has moved tables after epoch {durable.pipeline.epoch} had begun")
        for table, event in events.items():
            if answer[table] != before[table]:
                self._expect_present(table, event, before[table])
                if isinstance(event, CopyFinished):
                    self.world.whole_from[table, event.attempt] = event.boundary
        return answer

    def _expect_present(self, table: TableName, event: Event, before: TableState) -> None:
        if event.generation != before.generation:
            self.world.violate(f"{event} has moved {table}, which is of generation {before.generation}")
        handover = getattr(event, "handover", None)
        if handover is not None and handover != handover_of(before):
            self.world.violate(f"{event} has moved {table}, whose hand-over is number {handover_of(before)}")


class StoreClient:
    """A process's way to the store, over a network. What takes effect without an answer is not in its cache."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._real = world.open_store()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._real, name)
        if name in _CACHED or not callable(method):
            return method

        def request(*given: Any, **named: Any) -> Any:
            words = ", ".join(map(_short, (*given, *named.values())))
            return self._world.call(
                self._process,
                "store",
                f"{name}({words})",
                lambda: method(*given, **named),
                lambda: getattr(self._world.open_store(), name)(*given, **named),
                reads=name in _READS,
            )

        self.__dict__[name] = request
        return request

    def wait(self, timeout: float) -> bool:
        """Until somebody has written, or time is up."""
        real, durable = self._real, self._world.durable
        known = real._view.revision
        self._world.block(self._process, lambda: durable.view.revision != known, timeout)
        return self._world.call(self._process, "store", "listen()", lambda: real.wait(0), lambda: None, reads=True)


def client(world: World, process: Process) -> Store:
    return cast(Store, StoreClient(world, process))


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_short(each)}" for key, each in value.items())
    return str(value)
