"""One invocation of a command: the file that was named, how results are shown, the open pipeline, and signals.

A command enters `session`, calls a verb of `CommandSession.pipeline`, and shows the result. Files are read before the
modules that connect to servers are imported.
"""

from __future__ import annotations

import json
import logging
import os
import select
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, Protocol

import typer

from airflow_provider_pgetl.cli.board import table_words
from airflow_provider_pgetl.cli.dags import declared_pipeline, is_of_airflow, refuse_to_run
from airflow_provider_pgetl.cli.error_messages import DONE, ErrorMessages
from airflow_provider_pgetl.cli.lines import JsonLines, PlainLines
from airflow_provider_pgetl.engine.config.pipeline_file import PipelineFile, read_pipeline_file
from airflow_provider_pgetl.engine.config.secrets import redact
from airflow_provider_pgetl.engine.model.errors import TABLE_ERRORED
from airflow_provider_pgetl.engine.model.phases import Errored
from airflow_provider_pgetl.engine.model.reports import Noted, Report
from airflow_provider_pgetl.engine.model.tables import written
from airflow_provider_pgetl.engine.runtime.processes import return_memory
from airflow_provider_pgetl.errored_tables import errored_table

if TYPE_CHECKING:
    from airflow_provider_pgetl.engine.config.jobs import MergeResult
    from airflow_provider_pgetl.engine.model.results import RunOutcome, Status, TableStatus
    from airflow_provider_pgetl.engine.model.tables import TableName
    from airflow_provider_pgetl.engine.pipeline import Pipeline


class LogFormat(StrEnum):
    PLAIN = "plain"
    JSON = "json"


@dataclass(slots=True)
class Manner:
    """How the command prints; options before the command's name apply where those after it are not given."""

    log_format: LogFormat = LogFormat.PLAIN
    verbose: bool = False

    def refined(self, log_format: LogFormat | None, verbose: bool) -> Manner:
        return Manner(log_format or self.log_format, verbose or self.verbose)

    @property
    def as_json(self) -> bool:
        return self.log_format is LogFormat.JSON


class ReportDisplay(Protocol):
    """An observer that must be closed."""

    def __call__(self, report: Report) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class CommandSession:
    """What a command works with."""

    file: PipelineFile
    manner: Manner
    error_messages: ErrorMessages
    watcher: ReportDisplay
    pipeline: Pipeline

    def answer(self, event: str, text: str, **data: Any) -> None:
        """Prints one result on standard output: `text`, or as JSON `event` and `data`."""
        if self.manner.as_json:
            typer.echo(json.dumps({"event": event, **data}, ensure_ascii=False))
        else:
            typer.echo(text)

    @property
    def patience(self) -> float:
        """For how many seconds `destroy` waits for the pipeline's stream to end: Airflow may have left one that ends by
        itself."""
        if not is_of_airflow(self.file.path):
            return 0.0
        from airflow_provider_pgetl.triggers.child import OVER_SECONDS

        return OVER_SECONDS

    def close_with(self, outcome: RunOutcome, *, stopped: bool) -> int:
        """Prints how a run ended; returns the exit code."""
        self.watcher.close()
        for table, phase in outcome.errored.items():
            self.error_messages.say(
                "errored", f"{table_words(table)} is Errored: {phase.reason}", self._remedy(table, phase), TABLE_ERRORED
            )
        code = DONE if stopped or not outcome.errored else TABLE_ERRORED
        words = "Stopped." if stopped else "Done." if code == DONE else "Done, but for the tables that are Errored."
        self.answer("ended", words, stopped=stopped, exit_code=code, **outcome.as_json())
        return code

    def close_merge(self, result: MergeResult, *, stopped: bool) -> int:
        """Prints how a merge ended; returns the exit code."""
        self.watcher.close()
        if result.failure is not None:
            raise result.failure.error
        for table, failure in result.failed.items():
            self.error_messages.say(
                failure.kind,
                f"{table_words(table)} could not be merged: {failure.message}",
                failure.remedy,
                TABLE_ERRORED,
            )
        words = (
            "Stopped."
            if stopped
            else "Done, but for the tables that could not be merged."
            if result.failed
            else "Done."
        )
        code = DONE if stopped else result.exit_code
        self.answer("ended", words, stopped=stopped, exit_code=code, **result.as_json())
        return code

    def with_remedies(self, status: Status) -> Status:
        """Returns the status with what to do about each Errored table: a command, or a Clear where a DAG declares the
        pipeline."""
        return replace(status, tables=tuple(map(self._with_remedy, status.tables)))

    def _with_remedy(self, table: TableStatus) -> TableStatus:
        phase = table.state.phase
        if not isinstance(phase, Errored):
            return table
        if is_of_airflow(self.file.path):
            errored = errored_table(table.table, table.state, 0.0)
            solution = "" if errored is None else errored.what_to_do
        else:
            solution = self.error_messages.with_file(self._remedy(table.table, phase))
        return replace(table, state=replace(table.state, phase=replace(phase, solution=solution)))

    def _remedy(self, table: TableName, phase: Errored) -> str:
        """Returns the error's own remedy, and the command that follows it."""
        solution = (phase.solution or "Settle it, then roll the table back.").replace(
            " FILE TABLE`", f" FILE {shlex.quote(written(table))}`"
        )
        if phase.retry_policy.kind == "timed" or "`pgetl " in solution:
            return solution
        command = f"`pgetl rollback {shlex.quote(str(self.file.path))} {shlex.quote(written(table))}`"
        if solution.endswith(" back."):
            return f"{solution.removesuffix('.')} ({command})."
        return f"{solution} Then {command}."


@contextmanager
def session(
    path: Path, manner: Manner, watcher: Callable[[Manner], ReportDisplay] | None = None
) -> Iterator[CommandSession]:
    """Reads the declaration, opens the pipeline, and prints errors once everything is closed again. A caller that
    passes a watcher is about to run the pipeline."""
    error_messages = ErrorMessages(manner.as_json, manner.verbose)
    with error_messages.told():
        if watcher is not None:
            refuse_to_run(path)
        error_messages.file, environment = _declared(path)
        if watcher is not None:
            return_memory()  # before the destination's libraries are imported, which happens when a pipeline is opened
        from airflow_provider_pgetl.engine.pipeline import Pipeline

        with (
            closing((watcher or quiet_watcher)(manner)) as watching,
            _logging_to(watching, manner.verbose),
            closing(Pipeline(error_messages.file.spec, watching, environment)) as pipeline,
        ):
            yield CommandSession(error_messages.file, manner, error_messages, watching, pipeline)


def _declared(path: Path) -> tuple[PipelineFile, Mapping[str, str]]:
    """Returns the declaration, of a file or a DAG, and the environment in which its references are resolved."""
    if not is_of_airflow(path):
        return read_pipeline_file(path), os.environ
    declared = declared_pipeline(path)
    return declared.file, declared.environment


def progress_watcher(manner: Manner) -> ReportDisplay:
    """For verbs that take long: a live display on a terminal, else lines, on standard output."""
    if manner.as_json:
        return JsonLines(sys.stdout)
    if not sys.stdout.isatty():
        return PlainLines(sys.stdout)
    from rich.console import Console

    from airflow_provider_pgetl.cli.terminal import TerminalWatcher

    return TerminalWatcher(Console())


def quiet_watcher(manner: Manner) -> ReportDisplay:
    """For verbs that print their result on standard output: reports go to standard error."""
    return JsonLines(sys.stderr) if manner.as_json else PlainLines(sys.stderr)


@contextmanager
def _logging_to(watcher: ReportDisplay, verbose: bool) -> Iterator[None]:
    """Shows what libraries and the engine log as notes: warnings, and with `verbose` information too."""
    handler = _NotedLog(watcher)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO if verbose else logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(before)
        root.removeHandler(handler)


class _NotedLog(logging.Handler):
    """Turns log records into notes."""

    def __init__(self, watcher: ReportDisplay) -> None:
        super().__init__()
        self._watcher = watcher

    def emit(self, record: logging.LogRecord) -> None:
        self._watcher(Noted(_level(record.levelno), redact(record.getMessage())))


def _level(number: int) -> Literal["info", "warning", "error"]:
    if number >= logging.ERROR:
        return "error"
    return "warning" if number >= logging.WARNING else "info"


# -- SIGTERM and SIGINT: ask the verb to stop, and end the process after a limited time in any case. -------------------
#
# The first signal sets the event that every verb watches: the write in flight has some time to finish, what is durable
# is acknowledged, and the verb returns. If that has not happened after `PATIENCE` seconds, or a second signal comes,
# the process ends at once. That is safe, because nothing is lost by it: the source still has what was not acknowledged,
# and the next start continues from what is durable.
#
# Signals are handled in a thread of their own, through a pipe: a handler that set an event itself could interrupt the
# main thread inside that very event, and one that waits for the main thread would wait for a connection attempt to time
# out.

PATIENCE = 9.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SHOW_CURSOR = "\x1b[?25h"


@contextmanager
def stop_on_signals(
    say: Callable[[str], None], leave: Callable[[int], None] | None = None, patience: float = PATIENCE
) -> Iterator[threading.Event]:
    """Yields an event that the first signal sets. May be entered by the main thread only.

    `say` shows what happens; `leave` ends the process with an exit code, by default `leave_now`; `patience`: the
    seconds after which it is called.
    """
    stop = threading.Event()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = {number: signal.signal(number, _accept) for number in _SIGNALS}
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watch = threading.Thread(
        target=_watch, args=(reader, stop, say, leave or leave_now, patience), name="pgetl signals", daemon=True
    )
    watch.start()
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writer)  # ends the thread, which closes its own end
        watch.join()


def leave_now(code: int) -> None:
    """Ends the process here. Child processes notice by their pipes; the cursor of the terminal is shown again."""
    if sys.stdout.isatty():
        sys.stdout.write(_SHOW_CURSOR)
        sys.stdout.flush()
    os._exit(code)


def _accept(number: int, frame: FrameType | None) -> None:
    """Does nothing: without a handler the signal would end the process. The pipe carries it."""


def _watch(
    reader: int, stop: threading.Event, say: Callable[[str], None], leave: Callable[[int], None], patience: float
) -> None:
    try:
        if not _next_signal(reader, None):
            return
        say("Stopping: the write in flight is given a moment.")
        stop.set()
        answer = _next_signal(reader, patience)
        if answer is None:
            say("Stopping took too long; the next start goes on from what is durable.")
            leave(0)
        elif answer:
            leave(1)
    finally:
        os.close(reader)


def _next_signal(reader: int, patience: float | None) -> bool | None:
    """Waits for a signal. Returns True for a signal, False when the pipe was closed, None when the time is up."""
    deadline = None if patience is None else time.monotonic() + patience
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([reader], [], [], left)
        if not ready:
            return None
        number = os.read(reader, 1)
        if not number:
            return False
        if number[0] in _SIGNALS:  # the pipe carries every signal that has a handler
            return True
