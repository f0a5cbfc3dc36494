"""The words in which plain lines and the terminal say the same things. Pure."""

from __future__ import annotations

from airflow_provider_pgetl.cli.board import CopyView, StreamView
from airflow_provider_pgetl.engine.phases import Errored, Init, TableState, phase_name, phase_to_json
from airflow_provider_pgetl.engine.quantities import format_duration, format_size
from airflow_provider_pgetl.engine.reports import Noted
from airflow_provider_pgetl.engine.table_names import written
from airflow_provider_pgetl.engine.tables import TableName


def printable(text: str) -> str:
    """One line of it, whatever is in it: names of tables may hold line ends and terminal commands."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def table_words(table: TableName) -> str:
    """As the file and the commands take it."""
    return printable(written(table))


def note_words(note: Noted) -> str:
    """A note may quote a log of several lines: they follow, indented."""
    first, *more = note.message.strip().splitlines() or [""]
    prefix = "" if note.level == "info" else f"{note.level}: "
    return "\n    ".join(map(printable, [prefix + first, *more]))


def phase_words(state: TableState) -> str:
    """``FinishedCopy at 0/1A2B``, ``Errored: reason Remedy``."""
    if isinstance(state.phase, Errored):
        solution = f" {state.phase.solution}" if state.phase.solution else ""
        return printable(f"Errored: {state.phase.reason}{solution}")
    data = phase_to_json(state.phase)
    where = data.get("boundary") or data.get("position")
    return phase_name(state.phase) + (f" at {where}" if where else "")


def next_words(state: TableState) -> str:
    """What comes of a table that was taken back."""
    if isinstance(state.phase, Init):
        return "A run copies it again, whole; until then its rows in the destination stay as they are."
    return "A run goes on from its copy, and applies the changes since."


def copy_words(view: CopyView) -> str:
    progress = view.progress
    volume = f"{format_size(progress.bytes_done)} of {format_size(progress.bytes_total)}"
    return f"{view.share:.0%}, {volume}, {progress.rows:,} rows, {format_size(view.rate)}/s"


def stream_words(view: StreamView) -> str:
    progress = view.progress
    words = f"{view.rate:,.0f} changes/s, {progress.changes:,} so far, {lag_words(view)}"
    if progress.missed:
        words += f", {progress.missed:,} found no row"
    if progress.pause_seconds:
        words += f", paused {format_duration(progress.pause_seconds)} for hand-overs"
    return words


def lag_words(view: StreamView) -> str:
    return f"lag {format_duration(view.progress.lag_seconds)} ({format_size(view.progress.lag_bytes)})"
