"""Reports as lines, for pipes and log files: plain text, or JSON for programs.

Phases and notes are always written; progress of a copy or a stream only at intervals, and when it is complete. A pipe
that its reader has closed must not stop the replication: then lines are dropped.
"""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from typing import TextIO

from airflow_provider_pgetl.cli.board import (
    Board,
    copy_words,
    note_words,
    phase_words,
    printable,
    stream_words,
    table_words,
)
from airflow_provider_pgetl.engine.model.reports import (
    CopyProgressed,
    Noted,
    PhaseReached,
    Report,
    StreamProgressed,
    to_line,
)

PLAIN_SECONDS = 5.0
JSON_SECONDS = 1.0


class Throttle:
    """Lets each key through once in `interval` seconds."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._last: dict[object, float] = {}

    def passes(self, key: object, now: float) -> bool:
        if now - self._last.get(key, float("-inf")) < self._interval:
            return False
        self._last[key] = now
        return True


class LineWriter:
    """Writes whole lines, from any thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._gone = False

    def write(self, line: str) -> None:
        with self._lock:
            if self._gone:
                return
            try:
                self._stream.write(f"{line}\n")
                self._stream.flush()
            except (OSError, ValueError):  # ValueError: the stream is closed
                self._gone = True


class _LineDisplay(ABC):
    """What plain and JSON lines share: the choice of reports that are written."""

    def __init__(self, stream: TextIO, interval: float, clock: Callable[[], float]) -> None:
        self._out = LineWriter(stream)
        self._throttle = Throttle(interval)
        self._clock = clock
        self._board = Board()

    def __call__(self, report: Report) -> None:
        now = self._clock()
        if self._board.tell(report, now) and self._worth_a_line(report, now):
            self._out.write(self._line(report))

    def _worth_a_line(self, report: Report, now: float) -> bool:
        match report:
            case CopyProgressed(table, attempt, done, total):
                complete = done >= total
                return self._throttle.passes((table, attempt, complete), now)
            case StreamProgressed(stream):
                return self._throttle.passes(stream, now)
            case _:
                return True

    @abstractmethod
    def _line(self, report: Report) -> str: ...

    @abstractmethod
    def say(self, text: str) -> None: ...

    def close(self) -> None:  # noqa: B027  lines hold nothing back; a terminal does
        """Does nothing: lines are not buffered."""


class PlainLines(_LineDisplay):
    """Writes lines like ``12:03:04 public.orders: FinishedCopy at 0/1A2B``."""

    def __init__(
        self,
        stream: TextIO,
        interval: float = PLAIN_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], str] = lambda: datetime.now().astimezone().strftime("%H:%M:%S"),
    ) -> None:
        super().__init__(stream, interval, clock)
        self._time_of_day = time_of_day

    def say(self, text: str) -> None:
        self._out.write(f"{self._time_of_day()} {printable(text)}")

    def _line(self, report: Report) -> str:
        return f"{self._time_of_day()} {self._words(report)}"

    def _words(self, report: Report) -> str:
        match report:
            case PhaseReached(table, state):
                return f"{table_words(table)}: {phase_words(state)}"
            case CopyProgressed(table):
                return f"{table_words(table)}: copied {copy_words(self._board.copy(table))}"
            case StreamProgressed(stream):
                return f"{stream}: {stream_words(self._board.stream(stream))}"
            case Noted():
                return note_words(report)


class JsonLines(_LineDisplay):
    """Writes reports as `model.reports` encodes them, each with the time, `at`, in seconds since the Unix epoch."""

    def __init__(
        self,
        stream: TextIO,
        interval: float = JSON_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(stream, interval, clock)
        self._wall_clock = wall_clock

    def say(self, text: str) -> None:
        self(Noted("info", text))

    def _line(self, report: Report) -> str:
        data = json.loads(to_line(report))
        return json.dumps({"event": data.pop("event"), "at": self._wall_clock(), **data}, ensure_ascii=False)
