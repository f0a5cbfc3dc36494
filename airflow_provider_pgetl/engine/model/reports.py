"""Reports of the engine: plain events, sent to an observer as they happen.

The engine never prints. A terminal, a JSON log and an Airflow trigger each render the same events in their own way;
none of them can change what the engine does. Observers must return quickly and never raise; they may be called from any
thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from airflow_provider_pgetl.engine.model.phases import TableState, phase_from_json, phase_to_json
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName


@dataclass(frozen=True, slots=True)
class PhaseReached:
    table: TableName
    state: TableState


@dataclass(frozen=True, slots=True)
class CopyProgressed:
    """Progress of one table in one copy attempt; `bytes_total` is the size of the heap when the copy was planned."""

    table: TableName
    attempt: int
    bytes_done: int
    bytes_total: int
    rows: int


@dataclass(frozen=True, slots=True)
class StreamProgressed:
    """Progress of one stream: `stream` is "apply" or the group's "c<attempt>". `lag_seconds` is the age of the oldest
    commit that is not durable in the destination, zero when there is none. `changes` counts those that have been
    written or are being written in the current batch. `missed` counts updates and deletes that found no row."""

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
    """An observer that ignores every report."""


# -- Reports as lines of JSON, and back: the output of a child process, or of a log for machines. ----------------------
#
# `from_line(to_line(report)) == report` for every report. `from_line` returns None for a line that is not a report:
# libraries print too.

_EVENTS: Mapping[str, type[Report]] = {
    "phase_reached": PhaseReached,
    "copy_progressed": CopyProgressed,
    "stream_progressed": StreamProgressed,
    "noted": Noted,
}
_NAMES = {kind: name for name, kind in _EVENTS.items()}


def to_line(report: Report) -> str:
    """Returns one line, without a line end."""
    return json.dumps({"event": _NAMES[type(report)], **to_json(report)}, ensure_ascii=False)


def from_line(line: str) -> Report | None:
    try:
        data = json.loads(line)
    except ValueError:
        return None
    kind = _EVENTS.get(str(data.pop("event", ""))) if isinstance(data, dict) else None
    return kind(**{name: _read(name, value) for name, value in data.items()}) if kind else None


def to_json(report: Report) -> dict[str, Any]:
    data = {name: _plain(getattr(report, name)) for name in report.__dataclass_fields__}
    return {name: value for name, value in data.items() if value is not None}


def state_to_json(state: TableState) -> dict[str, Any]:
    copied = None if state.copied is None else str(state.copied)
    return {
        **phase_to_json(state.phase),
        "generation": state.generation,
        "attempt": state.attempt,
        "copied": copied,
    }


def state_from_json(data: Mapping[str, Any]) -> TableState:
    copied = None if data["copied"] is None else Boundary.parse(data["copied"])
    return TableState(phase_from_json(dict(data)), data["generation"], data["attempt"], copied)


def _plain(value: Any) -> Any:
    match value:
        case TableName():
            return asdict(value)
        case Boundary():
            return str(value)
        case TableState():
            return state_to_json(value)
        case _:
            return value


def _read(name: str, value: Any) -> Any:
    match name:
        case "table":
            return TableName(**value)
        case "position" | "durable":
            return Boundary.parse(value)
        case "state":
            return state_from_json(value)
        case _:
            return value
