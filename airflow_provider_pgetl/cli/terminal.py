"""The live display on a terminal: a bar for each table being copied, a line for each stream, a table of phases.

Notes scroll by above it. `draw` makes the picture from data alone; `TerminalWatcher` shows it four times a second.
Names are rendered as `Text`, never as markup: a table may be called ``[red]``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from airflow_provider_pgetl.cli.board import (
    Board,
    CopyView,
    ProgressSnapshot,
    StreamView,
    lag_words,
    note_words,
    phase_words,
    printable,
    table_words,
)
from airflow_provider_pgetl.engine.model.phases import PhaseName
from airflow_provider_pgetl.engine.model.quantities import format_duration, format_size
from airflow_provider_pgetl.engine.model.reports import CopyProgressed, Noted, Report, StreamProgressed
from airflow_provider_pgetl.engine.model.tables import TableName

_ORDER: tuple[PhaseName, ...] = (
    "Init",
    "DataSync",
    "FinishedCopy",
    "SyncWait",
    "Catchup",
    "SyncDone",
    "Ready",
    "Errored",
)
_STYLES = {"Ready": "green", "Errored": "red", "DataSync": "cyan", "info": "", "warning": "yellow", "error": "red"}
_NAMES_SHOWN = 6
_BARS_SHOWN = 8


class TerminalWatcher:
    """An observer that draws. It begins when it is made; `close` ends it and leaves the last picture on the
    terminal."""

    def __init__(self, console: Console, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._board = Board()
        self._live = Live(console=console, get_renderable=self._draw, refresh_per_second=4, redirect_stdout=False)
        self._live.start()

    def __call__(self, report: Report) -> None:
        changed = self._board.tell(report, self._clock())
        if isinstance(report, CopyProgressed | StreamProgressed) or not changed:
            return
        if isinstance(report, Noted):
            self._console.print(Text(note_words(report), style=_STYLES[report.level]))

    def say(self, text: str) -> None:
        self._console.print(Text(printable(text)))

    def close(self) -> None:
        self._live.stop()

    def _draw(self) -> RenderableType:
        return draw(self._board.picture())


def draw(picture: ProgressSnapshot) -> RenderableType:
    """Returns the whole picture."""
    parts: list[RenderableType] = []
    if picture.copies:
        parts.append(_copies(picture.copies))
    if picture.streams:
        parts.append(_streams(picture.streams))
    if picture.tables:
        parts += [_phases(picture), *_errors(picture)]
    return Group(*parts) if parts else Text("Preparing…")


def _copies(copies: tuple[CopyView, ...]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(width=24)
    for justify in ("right", "right", "right", "right"):
        grid.add_column(no_wrap=True, justify=justify)
    for copy in copies[:_BARS_SHOWN]:
        grid.add_row(*_copy(copy))
    if len(copies) > _BARS_SHOWN:
        grid.add_row(f"and {len(copies) - _BARS_SHOWN} more tables")
    return grid


def _copy(copy: CopyView) -> tuple[RenderableType, ...]:
    progress = copy.progress
    left = (progress.bytes_total - progress.bytes_done) / copy.rate if copy.rate > 0 else 0.0
    return (
        Text(table_words(progress.table), style="cyan"),
        ProgressBar(total=1.0, completed=copy.share),
        f"{copy.share:.0%}",
        f"{progress.rows:,} rows",
        f"{format_size(copy.rate)}/s",
        f"{format_duration(left)} left" if left > 0 else "",
    )


def _streams(streams: tuple[StreamView, ...]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="bold")
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    for stream in streams:
        lagging = "yellow" if stream.progress.lag_seconds > 10 else "green"
        missed = f"{stream.progress.missed:,} found no row" if stream.progress.missed else ""
        grid.add_row(
            "apply" if stream.progress.stream == "apply" else f"catch-up {stream.progress.stream}",
            f"{stream.rate:,.0f} changes/s",
            Text(lag_words(stream), style=lagging),
            Text(missed, style="yellow"),
        )
    return grid


def _phases(picture: ProgressSnapshot) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, justify="right")
    grid.add_column(overflow="ellipsis", no_wrap=True)
    by_phase = picture.by_phase
    for phase in _ORDER:
        if tables := by_phase.get(phase):
            grid.add_row(Text(phase, style=_STYLES.get(phase, "")), str(len(tables)), Text(_some(tables)))
    return grid


def _errors(picture: ProgressSnapshot) -> Iterator[Text]:
    """Yields errors in full, over as many lines as they take."""
    for table in picture.by_phase.get("Errored", ())[:_BARS_SHOWN]:
        yield Text(f"{table_words(table)}: {phase_words(picture.tables[table])}", style="red")


def _some(tables: tuple[TableName, ...]) -> str:
    shown = ", ".join(table_words(table) for table in tables[:_NAMES_SHOWN])
    return shown if len(tables) <= _NAMES_SHOWN else f"{shown} and {len(tables) - _NAMES_SHOWN} more"
