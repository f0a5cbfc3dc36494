"""A core driven by hand: what a test tells it, and what it commands."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeVar

from airflow_provider_pgetl.engine.model.phases import Phase, TableState
from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.stream.core import StreamCore
from airflow_provider_pgetl.engine.stream.messages import Command

ORDERS, ITEMS, LINES = (TableName("public", name) for name in ("orders", "items", "lines"))
GROUP = 7
SNAPSHOT = Boundary(100)

C = TypeVar("C")


def at(phase: Phase, generation: int = 1, attempt: int | None = GROUP) -> TableState:
    return TableState(phase, generation, attempt, SNAPSHOT)


@dataclass
class Driven:
    core: StreamCore
    heard: list[Command] = field(default_factory=list)

    def said(self, kind: type[C]) -> list[C]:
        """The commands of this kind since they were last asked for."""
        self.heard += self.core.commands()
        found: list[C] = [command for command in self.heard if isinstance(command, kind)]
        self.heard = [command for command in self.heard if not isinstance(command, kind)]
        return found

    def reads(self) -> bool:
        return self.core.reading

    def receive(self, commit: int, end: int, *tables: TableName, commit_time: int = 0) -> None:
        """A transaction that changed these tables, each as far as the stream owns it."""
        self.core.begin(CommitLsn(commit), commit_time=commit_time)
        for table in tables:
            if self.core.owns(table, CommitLsn(commit)):
                self.core.gathered(table)
        self.core.commit(Boundary(end))

    def pass_time(self, seconds: float) -> None:
        self.core.tick(self.core.now + seconds)

    def move(self, **changed: TableState) -> None:
        """The store shows these tables, named without their schema, in new states."""
        fresh = {TableName("public", name): state for name, state in changed.items()}
        self.core.recorded({**self.core.states, **fresh})

    def raise_generation(self, table: TableName, phase: Phase, attempt: int | None = GROUP) -> None:
        state = self.core.states[table]
        fresh = replace(state, phase=phase, generation=state.generation + 1, attempt=attempt)
        self.core.recorded({**self.core.states, table: fresh})
