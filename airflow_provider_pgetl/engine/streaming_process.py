"""The streaming worker as a separate process, so that it does not slow down its supervisor.

    supervisor ── stdin: one line of JSON, the order; kept open as long as the worker is wanted ──▶ worker
    supervisor ◀─ stdout: lines of JSON: reports, and one last line that says how it ended ──────── worker

The order contains the specification and the values of the environment variables that it refers to, including secrets.
They are sent through the pipe and appear in no argument list and no file. When stdin is closed, because the supervisor
closed it or has ended, the worker waits a moment for its write in flight, acknowledges what is durable, and exits. If
that takes longer than `_LAST_SECONDS`, it exits without: the epoch fences writes that may remain.

After the order, the supervisor sends empty lines as heartbeats. A supervisor that is stopped, or whose machine gives it
no CPU time, keeps stdin open but sends nothing. Another supervisor may then have taken its place and be waiting for the
lease that this worker holds. The worker therefore exits when it has received nothing for the number of seconds that the
order specifies.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from typing import IO

from airflow_provider_pgetl.engine.config.jobs import Ending, Order
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError, StateReplaced
from airflow_provider_pgetl.engine.model.reports import Report, to_line
from airflow_provider_pgetl.engine.runtime.processes import return_memory

_LAST_SECONDS = 9.0


class _Lines:
    """Writes whole lines to standard output. Discards lines once the reader has closed the pipe."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._lock = threading.Lock()
        self._unread = False

    def write(self, line: str) -> None:
        with self._lock:
            if self._unread:
                return
            try:
                self._out.write(line + "\n")
                self._out.flush()
            except BrokenPipeError:
                self._unread = True

    def report(self, report: Report) -> None:
        self.write(to_line(report))


def main() -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    return_memory()
    order = Order.from_line(sys.stdin.readline())
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    supervisor = _Supervisor(stop, order.beat_seconds)
    supervisor.start()
    lines = _Lines(sys.stdout)
    ending = _stream(order, lines, stop, supervisor)
    lines.write(ending.to_line())
    return 0 if ending.kind is None else ErrorKind(ending.kind).directive.exit_code


class _Supervisor:
    """Sets `stop` when the supervisor closes stdin, ends, or, if it sends heartbeats, has sent none for too long."""

    def __init__(self, stop: threading.Event, beat_seconds: float | None) -> None:
        self._stop = stop
        self._beat_seconds = beat_seconds
        self._heard = threading.Event()
        self.silent = False

    def start(self) -> None:
        threading.Thread(target=self._listen, name="pgetl order", daemon=True).start()
        if self._beat_seconds is not None:
            threading.Thread(target=self._watch, args=(self._beat_seconds,), name="pgetl beats", daemon=True).start()

    def _listen(self) -> None:
        while sys.stdin.readline():
            self._heard.set()
        self._end()

    def _watch(self, seconds: float) -> None:
        while self._heard.wait(seconds):
            self._heard.clear()
        self.silent = True
        self._end()

    def _end(self) -> None:
        self._stop.set()
        threading.Timer(_LAST_SECONDS, _leave).start()


def _stream(order: Order, lines: _Lines, stop: threading.Event, supervisor: _Supervisor) -> Ending:
    from airflow_provider_pgetl.engine.pipeline import Pipeline  # also imports Arrow, hence not before `return_memory`

    pipeline = Pipeline(order.spec, lines.report, {**os.environ, **order.environment})
    try:
        pipeline.stream(until_caught_up=order.until_caught_up, stop=stop, lease_patience=None)
    except PgetlError as error:
        fenced = isinstance(error, Fenced) and not isinstance(error, StateReplaced)
        return Ending(error.kind.value, error.message, error.remedy, fenced=fenced, abandoned=supervisor.silent)
    finally:
        pipeline.close()
    return Ending(stopped=stop.is_set(), abandoned=supervisor.silent)


def _leave() -> None:
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
