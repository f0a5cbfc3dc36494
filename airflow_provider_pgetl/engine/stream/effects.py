"""The commands of a stream's core to its shell (`StreamLoop`), which executes them and reports the outcome to the core.

| command | the shell | and calls |
|---|---|---|
| `Write` | passes the batch gathered so far (or, `again`, the one it holds) to the writer | `written`, `write_failed` |
| `RecordEvents` | applies the events in the store, all or none, and reads the tables back | `recorded` |
| `RecordCeiling` | records that the slot may be confirmed up to here | `ceiling_recorded` or `ceiling_failed` |
| `Acknowledge` | records that the generations were taken up; the store thread repeats it until seen | — |
| `Verify` | checks the lease and reads the tables back from the store | `recorded` or `stop` |
| `AskPosition` | asks the server for a keepalive | `keepalive` |
| `Finish` | ends the stream | — |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_pgetl.engine.model.phases import Event
from airflow_provider_pgetl.engine.model.positions import Boundary, HighWater
from airflow_provider_pgetl.engine.model.recognition import Seen
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.protocol import APPLY_CEILING


@dataclass(frozen=True, slots=True)
class Planned:
    """One table's move within a write: the compare-and-set that the destination performs on the table's position."""

    generation: int
    expected: Boundary
    to: Boundary


@dataclass(frozen=True, slots=True)
class Write:
    """Makes everything gathered up to `boundary` durable, for exactly the tables in `moves`. `again`: retries the same
    batch, possibly for fewer tables."""

    boundary: Boundary
    moves: Mapping[TableName, Planned]
    again: bool = False


@dataclass(frozen=True, slots=True)
class RecordEvents:
    events: Mapping[TableName, Event]


@dataclass(frozen=True, slots=True)
class RecordCeiling:
    """Records `boundary` as the ceiling of the slot's confirmation, together with what the stream has seen of the WAL
    before it (`seen`) and the positions at which the destination was seen, as high-water marks (`positions`). `stream`:
    the name under which the store holds the ceiling of this slot."""

    boundary: Boundary
    positions: Mapping[TableName, HighWater] = field(default_factory=dict)
    seen: Seen | None = None
    stream: str = APPLY_CEILING


@dataclass(frozen=True, slots=True)
class Acknowledge:
    generations: Mapping[TableName, int]


@dataclass(frozen=True, slots=True)
class Verify:
    """Checks, after the destination fenced a write, that this worker still holds the lease and which tables the stream
    owns."""


@dataclass(frozen=True, slots=True)
class AskPosition:
    pass


@dataclass(frozen=True, slots=True)
class Finish:
    """Ends the stream for the reason `why`. The stream can be started again."""

    why: str


Command = Write | RecordEvents | RecordCeiling | Acknowledge | Verify | AskPosition | Finish
