"""What the engine tells those who watch: plain events, sent to an observer as they happen.

The engine never prints. A terminal, a JSON log and an Airflow trigger each render the same events in their own way;
none of them can change what happens. Observers must be quick, may be called from any thread, and never raise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from airflow_provider_pgetl.engine.phases import TableState
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.tables import TableName


@dataclass(frozen=True, slots=True)
class PhaseReached:
    table: TableName
    state: TableState


@dataclass(frozen=True, slots=True)
class CopyProgressed:
    """One table of one copy attempt; `bytes_total` is the heap's size when the copy was planned."""

    table: TableName
    attempt: int
    bytes_done: int
    bytes_total: int
    rows: int


@dataclass(frozen=True, slots=True)
class StreamProgressed:
    """One stream: `stream` is "apply" or the group's "c<attempt>". `lag_seconds` is the age of the oldest commit that
    is not durable in the destination, zero when there is none. `changes` have been written, or are being written in the
    batch under way. `missed` counts updates and deletes that found no row.
    """

    stream: str
    position: Boundary
    durable: Boundary
    lag_bytes: int
    lag_seconds: float
    changes: int
    batches: int
    missed: int = 0
    pause_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Noted:
    """A sentence for a log."""

    level: Literal["info", "warning", "error"]
    message: str
    table: TableName | None = None


Report = PhaseReached | CopyProgressed | StreamProgressed | Noted
Observer = Callable[[Report], None]


def nobody(report: Report) -> None:
    """The observer of those who do not watch."""
