"""SIGTERM and SIGINT: ask the verb to stop, and end the process after a limited time in any case.

The first signal sets the event that every verb watches: the write in flight has some time to finish, what is durable is
acknowledged, and the verb returns. If that has not happened after `PATIENCE` seconds, or a second signal comes, the
process ends at once. That is safe, because nothing is lost by it: the source still has what was not acknowledged, and
the next start continues from what is durable.

Signals are handled in a thread of their own, through a pipe: a handler that set an event itself could interrupt the
main thread inside that very event, and one that waits for the main thread would wait for a connection attempt to time
out.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

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
