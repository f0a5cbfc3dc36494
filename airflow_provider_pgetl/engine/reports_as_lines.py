"""Reports as lines of JSON, and back: how a child process, or a log that machines read, tells what happens.

`from_line(to_line(report)) == report` for every report. A line that is none of ours (a library prints too) is None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from airflow_provider_pgetl.engine.phases import TableState, phase_from_json, phase_to_json
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.reports import CopyProgressed, Noted, PhaseReached, Report, StreamProgressed
from airflow_provider_pgetl.engine.tables import TableName

_EVENTS: Mapping[str, type[Report]] = {
    "phase_reached": PhaseReached,
    "copy_progressed": CopyProgressed,
    "stream_progressed": StreamProgressed,
    "noted": Noted,
}
_NAMES = {kind: name for name, kind in _EVENTS.items()}


def to_line(report: Report) -> str:
    """One line, without its end."""
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
