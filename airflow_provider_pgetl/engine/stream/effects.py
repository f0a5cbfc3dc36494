"""What a stream's core asks of the shell around it. The shell does it and tells the core how it ended.

| command | the shell does | and tells |
|---|---|---|
| `Write` | hands the batch gathered so far (or, `again`, the one it holds) to the writer | `written`, `write_failed` |
| `Record` | applies the events in the store, all or none, and reads the tables back | `recorded` |
| `RecordCeiling` | notes in the store that the slot may be acknowledged up to here | `ceiling_recorded` |
| `Acknowledge` | notes that the generations were taken up | — (said again until seen) |
| `Verify` | reads the lease and all tables from the store | `recorded` or `stop` |
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
    """One table's move within a write: the compare-and-set that the destination makes."""

    generation: int
    expected: Boundary
    to: Boundary


@dataclass(frozen=True, slots=True)
class Write:
    """Make durable everything gathered up to `boundary`, for exactly these tables. `again`: the same batch once more,
    perhaps for fewer tables."""

    boundary: Boundary
    moves: Mapping[TableName, Planned]
    again: bool = False


@dataclass(frozen=True, slots=True)
class RecordEvents:
    events: Mapping[TableName, Event]


@dataclass(frozen=True, slots=True)
class RecordCeiling:
    """Also what the stream has seen of the WAL before, and the positions that the destination was seen at, as
    high-water marks. `stream`: whose slot it is."""

    boundary: Boundary
    positions: Mapping[TableName, HighWater] = field(default_factory=dict)
    seen: Seen | None = None
    stream: str = APPLY_CEILING


@dataclass(frozen=True, slots=True)
class Acknowledge:
    generations: Mapping[TableName, int]


@dataclass(frozen=True, slots=True)
class Verify:
    """After the destination refused: find out who owns what."""


@dataclass(frozen=True, slots=True)
class AskPosition:
    pass


@dataclass(frozen=True, slots=True)
class Finish:
    """`why` is a sentence. The stream can be started anew."""

    why: str


Command = Write | RecordEvents | RecordCeiling | Acknowledge | Verify | AskPosition | Finish
