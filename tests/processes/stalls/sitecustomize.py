"""What holds up the event loop of a triggerer, however busy the machine is.

Python imports a module of this name when it starts, where the folder is on its path: so it gets into Airflow's own
process. A callback of the loop that takes longer than a tenth of a second is a line in the file that
``PGETL_TEST_STALLS`` names. asyncio's debug mode does the same by the clock alone, and on a busy machine blames whoever
was made to wait for a processor. That time, of every thread of the process (one that waits may hold the interpreter's
lock), the kernel counts, and here it is taken off.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

LONGEST_SECONDS = 0.1
_FILE = os.environ.get("PGETL_TEST_STALLS")
_THREADS = Path("/proc/self/task")
_NANO = 1e-9
# The threads are looked at anew before a callback only where that was longer ago: it costs a file for each of them.
_FRESH_SECONDS = 0.02


def waited() -> dict[str, float]:
    """For how long each thread of this process has been ready to run, and did not."""
    found: dict[str, float] = {}
    for thread in os.listdir(_THREADS):  # noqa: PTH208  the names alone, which is quicker
        try:
            found[thread] = int((_THREADS / thread / "schedstat").read_text().split()[1]) * _NANO
        except (OSError, IndexError):
            continue  # it has ended, or the kernel does not count
    return found


def watch(file: str) -> None:
    from asyncio import base_events, events

    run = events.Handle._run  # type: ignore[attr-defined]
    before, looked = waited(), time.monotonic()
    _write(file, f"process {os.getpid()} is watched")

    def watched(handle: events.Handle) -> None:
        nonlocal before, looked
        began = time.monotonic()
        if began - looked > _FRESH_SECONDS:
            before, looked = waited(), began
            began = time.monotonic()
        run(handle)
        took = time.monotonic() - began
        if took > LONGEST_SECONDS:
            now = waited()
            ready = sum(seconds - before.get(thread, 0.0) for thread, seconds in now.items())
            before, looked = now, time.monotonic()
            if took - ready > LONGEST_SECONDS:
                what = base_events._format_handle(handle)  # type: ignore[attr-defined]
                _write(file, f"{took:.2f} s, {ready:.2f} s of them ready to run: {what}")

    events.Handle._run = watched  # type: ignore[attr-defined]


def _write(file: str, line: str) -> None:
    with Path(file).open("a") as lines:
        lines.write(f"{line}\n")


if _FILE and "triggerer" in sys.orig_argv:
    watch(_FILE)
