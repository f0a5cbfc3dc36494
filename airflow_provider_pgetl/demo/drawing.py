"""How the demo is shown: a live picture on a terminal, lines everywhere else."""

from __future__ import annotations

import io
import sys
import time
from datetime import date
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from airflow_provider_pgetl.demo.asking import Answer
from airflow_provider_pgetl.demo.looking import Look, TableLook
from airflow_provider_pgetl.engine.quantities import format_size

_LINE_SECONDS = 5.0
_STYLES = {"Ready": "green", "Errored": "red", "DataSync": "cyan", None: "dim"}


class Screen(Protocol):
    """Where the demo shows itself."""

    def say(self, text: str) -> None: ...

    def show(self, look: Look, transactions: int) -> None: ...

    def close(self) -> None: ...


def open_screen() -> Screen:
    return Picture(Console()) if sys.stdout.isatty() else Lines()


class Picture:
    """The latest look, drawn anew; what is said scrolls by above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)
        self._live.start()

    def say(self, text: str) -> None:
        self._console.print(Text(text))

    def show(self, look: Look, transactions: int) -> None:
        self._live.update(draw(look, transactions), refresh=True)

    def close(self) -> None:
        self._live.stop()


class Lines:
    """A line for each change of phase, and one every few seconds."""

    def __init__(self) -> None:
        self._phases: dict[str, str | None] = {}
        self._due = 0.0

    def say(self, text: str) -> None:
        _write(text)

    def show(self, look: Look, transactions: int) -> None:
        for each in look.tables:
            if self._phases.get(str(each.table)) != each.phase:
                self._phases[str(each.table)] = each.phase
                _write(f"{each.table}: {each.phase} {each.trouble}".rstrip())
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + _LINE_SECONDS
            _write(_summary(look, transactions))

    def close(self) -> None:
        """Nothing is held back."""


def draw(look: Look, transactions: int) -> RenderableType:
    grid = Table("TABLE", "PHASE", box=None, padding=(0, 2, 0, 0))
    grid.add_column("SOURCE", justify="right")
    grid.add_column("REPLICA", justify="right")
    grid.add_column("")
    for each in look.tables:
        grid.add_row(*_cells(each))
    return Group(grid, Text(_summary(look, transactions), style="bold"))


def answer_as_text(answer: Answer) -> str:
    """A table, for reading."""
    grid = Table(*(column.upper() for column in answer.columns), box=None, padding=(0, 3, 0, 0))
    for column in grid.columns[1:]:
        column.justify = "right"
    for row in answer.rows:
        grid.add_row(*(str(value) if isinstance(value, date) else f"{value:,}" for value in row))
    console = Console(file=io.StringIO(), width=100)
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _cells(each: TableLook) -> tuple[RenderableType, ...]:
    phase = Text(each.phase or "–", style=_STYLES.get(each.phase, "yellow"))
    return Text(str(each.table)), phase, _rows(each.rows_here), _rows(each.rows_there), Text(each.trouble, style="red")


def _rows(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


def _summary(look: Look, transactions: int) -> str:
    ready = sum(each.phase == "Ready" for each in look.tables)
    lag = "–" if look.lag_bytes is None else format_size(look.lag_bytes)
    return f"{ready} of {len(look.tables)} tables Ready, {transactions:,} transactions in the shop so far, lag {lag}"


def _write(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()
