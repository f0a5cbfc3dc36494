"""The pipeline of a plan: its file, its worker, and its state."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import psycopg

from airflow_provider_pgetl.engine.destinations.delta.options import Updates
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.failures.pipeline import Running, Said
from tests.replicated import Replicated
from tests.waiting import until

_FILE = """\
id = "edges"
tables = ["edges.*"]
{declarations}
[source]
uri = "env:PGETL_SOURCE_URI"
manage_publication = {managed}
on_slot_lost = "{on_slot_lost}"
[state]
uri = "env:PGETL_STATE_URI"
[destination]
{destination}
[copy]
{copy}
[stream]
{stream}
"""


# A lake has ten seconds between two commits otherwise.
_OFTEN = 'min_interval = "300ms"'


@dataclass(frozen=True)
class State:
    """A table as the store has it."""

    phase: str
    generation: int
    reason: str = ""
    timed: bool = False


@dataclass
class PipelineOfEdges(Replicated):
    databases: Databases
    state: Database
    folder: Path
    managed: bool
    declarations: str
    copy: str
    stream: str
    lake: Updates | None
    on_slot_lost: Literal["error", "resync"]
    worker: Running | None = None
    commands: list[Running] = field(default_factory=list)

    @property
    def lake_uri(self) -> Path:
        return self.folder / "lake"

    def start(self, verb: str, *arguments: str) -> Running:
        file = self.folder / "edges.toml"
        destination = 'type = "postgres"\nuri = "env:PGETL_DESTINATION_URI"'
        if self.lake:
            destination = f'type = "delta"\nuri = "{self.lake_uri}"\nout_of_range = "text"\nupdates = "{self.lake}"'
        text = _FILE.format(
            declarations=self.declarations,
            managed=str(self.managed).lower(),
            on_slot_lost=self.on_slot_lost,
            destination=destination,
            copy=self.copy,
            stream=self.stream if "min_interval" in self.stream or not self.lake else f"{self.stream}\n{_OFTEN}",
        )
        file.write_text(text)
        environment = {
            "PGETL_SOURCE_URI": self.source.uri,
            "PGETL_DESTINATION_URI": self.destination.uri,
            "PGETL_STATE_URI": self.state.uri,
            "TEST_WATCH_SECONDS": "2",
        }
        self.commands.append(Running([verb, str(file), *arguments], environment, self.folder))
        return self.commands[-1]

    def command(self, verb: str, *arguments: str, timeout: float = 60.0) -> Said:
        return self.start(verb, *arguments).wait(timeout)

    def close(self) -> None:
        for command in self.commands:
            command.kill()

    def states(self) -> dict[str, State]:
        """By the tables' names without their schema; empty before the first run."""
        statement = """select t.table_name, h.phase, h.generation
                       from pgetl.tables t join pgetl.history h using (pipeline, table_schema, table_name)
                       where h.entry = t.current"""
        try:
            return {name: _state(phase, generation) for name, phase, generation in self.state.execute(statement)}
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            return {}

    def until(self, condition: Any, what: str, timeout: float) -> None:
        until(condition, what, timeout)


def _state(phase: dict[str, Any], generation: int) -> State:
    policy = phase.get("retry_policy") or {}
    return State(phase["phase"], generation, phase.get("reason") or "", policy.get("kind") == "timed")
