"""`pgetl top`: a pipeline on the terminal, read and drawn again every two seconds.

What is wrong comes first: Errored tables with their reason and remedy, then tables on their way to Ready, then those
that are Ready, the one that is furthest behind first. Above them is the last hour of the stream: its lag, changes, WAL
retained and memory, one character for each minute. It reads what `status` reads and the history that the worker
records; it writes nothing, and may run beside anything.

If the state database does not answer for a while, the last picture stays, with its age. `top_frame` makes the picture
from data alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from airflow_provider_pgetl.cli.board import phase_words, printable, table_words
from airflow_provider_pgetl.cli.lines import streaming_words
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.phases import phase_name
from airflow_provider_pgetl.engine.model.quantities import format_duration, format_size
from airflow_provider_pgetl.engine.model.results import RESOLUTIONS, Measurement, Resolution, Status, TableStatus

if TYPE_CHECKING:
    from airflow_provider_pgetl.cli.session import CommandSession

_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 60
_STYLES = {"Ready": "green", "Errored": "red"}


@dataclass(frozen=True, slots=True)
class _Series:
    """A line of the history. `value`: of the measurements of one column; there is none where nothing was measured."""

    title: str
    value: Callable[[Sequence[Measurement]], float]
    words: Callable[[float], str]


def show_top(asked: CommandSession, stop: threading.Event, console: Console, seconds: float = 2.0) -> None:
    """Draws the pipeline until `stop` is set."""
    frame, read_at = _frame(asked), time.monotonic()
    with Live(frame, console=console, screen=True, auto_refresh=False) as live:
        while not stop.wait(seconds):
            try:
                frame, read_at = _frame(asked), time.monotonic()
                live.update(frame, refresh=True)
            except PgetlError as error:
                if not error.transient:
                    raise
                age = format_duration(time.monotonic() - read_at)
                said = Text(f"Read {age} ago. {printable(error.message)}", style="red")
                live.update(Group(said, frame), refresh=True)


def print_top(asked: CommandSession, console: Console) -> None:
    """Draws the pipeline once."""
    console.print(_frame(asked))


def _frame(asked: CommandSession) -> RenderableType:
    resolution, pipeline = RESOLUTIONS[0], asked.pipeline
    status = asked.with_remedies(pipeline.status())
    return top_frame(status, pipeline.measurements(resolution), resolution, pipeline.now())


def _rate(changes: float) -> str:
    return f"{changes:,.0f}/s" if changes >= 10 or changes == 0 else f"{changes:.1f}/s"


def top_frame(status: Status, measured: Sequence[Measurement], resolution: Resolution, now: float) -> RenderableType:
    """Returns the picture. `measured`: the history in `resolution`, up to `now` of the state database's clock."""
    parts: list[RenderableType] = [
        Text(printable(f"Pipeline {status.pipeline}, instance {status.instance}: {streaming_words(status)}")),
        Text(""),
    ]
    if measured:
        parts += [_history(measured, resolution, now), Text("")]
    parts += [Text(f"warning: {printable(said)}", style="yellow") for said in status.warnings]
    parts += [Text(f"unknown: {printable(said)}", style="yellow") for said in status.unknown]
    parts.append(_tables(sorted(status.tables, key=_urgency)))
    return Group(*parts)


# -- The last hour. ----------------------------------------------------------------------------------------------------


def _history(measured: Sequence[Measurement], resolution: Resolution, now: float) -> Table:
    columns = _in_columns(measured, resolution, now)
    grid = Table.grid(padding=(0, 2))
    for _ in range(4):
        grid.add_column(no_wrap=True)
    for series in _series(resolution):
        values = [series.value(column) if column else None for column in columns]
        known = [value for value in values if value is not None]
        if known:
            last = series.value(measured[-1:])
            grid.add_row(
                series.title, sparkline(values), f"{series.words(last)} now", f"{series.words(max(known))} at most"
            )
    return grid


def _series(resolution: Resolution) -> tuple[_Series, ...]:
    def changes(column: Sequence[Measurement]) -> float:
        return sum(one.changes for one in column) / (len(column) * resolution.seconds)

    return (
        _Series("lag", lambda column: max(one.lag_seconds for one in column), format_duration),
        _Series("changes", changes, _rate),
        _Series("WAL retained", lambda column: max(one.retained_bytes for one in column), format_size),
        _Series("memory", lambda column: max(one.memory_bytes for one in column), format_size),
    )


def _in_columns(measured: Sequence[Measurement], resolution: Resolution, now: float) -> list[list[Measurement]]:
    columns: list[list[Measurement]] = [[] for _ in range(_COLUMNS)]
    for one in measured:
        age = (now - one.at) / resolution.kept
        if 0 <= age < 1:
            columns[_COLUMNS - 1 - int(age * _COLUMNS)].append(one)
    return columns


def sparkline(values: Sequence[float | None]) -> str:
    """Returns one character for each value, its height in proportion to the largest; a blank where there is none."""
    most = max((value for value in values if value is not None), default=0.0)
    return "".join(
        " " if value is None else _BARS[round(value / most * (len(_BARS) - 1)) if most else 0] for value in values
    )


# -- Tables. -----------------------------------------------------------------------------------------------------------


def _urgency(table: TableStatus) -> tuple[int, int, str]:
    phase = phase_name(table.state.phase)
    rank = {"Errored": 0, "Ready": 2}.get(phase, 1)
    return rank, -(table.lag_bytes or 0), table_words(table.table)


def _tables(tables: Sequence[TableStatus]) -> RenderableType:
    if not tables:
        return Text("No tables yet.")
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    grid.add_column("TABLE", no_wrap=True)
    grid.add_column("LAG", no_wrap=True, justify="right")
    grid.add_column("POSITION", no_wrap=True)
    grid.add_column("PHASE", overflow="fold")
    for table in tables:
        grid.add_row(
            Text(table_words(table.table)),
            "–" if table.lag_bytes is None else format_size(table.lag_bytes),
            "–" if table.position is None else str(table.position),
            Text(phase_words(table.state), style=_STYLES.get(phase_name(table.state.phase), "cyan")),
        )
    return grid
