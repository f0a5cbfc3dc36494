"""Runs the demo for ``pgetl demo``: its display, its signals, and its exit code."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from airflow_provider_pgetl.demo.demonstration import DemoFailed, Interrupted, demonstrate
from airflow_provider_pgetl.demo.observing import open_screen
from airflow_provider_pgetl.testing.servers.airflow_processes import AirflowError
from airflow_provider_pgetl.testing.servers.installations import ServerError

_INTERRUPTED = 130
_JAVA = 17


class _Stopping:
    """Handles Ctrl-C and SIGTERM, once: the shutdown must not be interrupted again."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        if not self.event.is_set():
            self.event.set()
            raise Interrupted


def run_demo(destination: str, *, once: bool, orders: int) -> int:
    """Runs the demo until it is interrupted, or, with `once`, until source and replica have been found equal. Returns
    the exit code."""
    stopping = _Stopping()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopping)
    screen = open_screen()
    try:
        demonstrate(screen, destination, once=once, orders=orders, stop=stopping.event)
    except Interrupted:
        return 0 if not once else _INTERRUPTED
    except (DemoFailed, AirflowError, ServerError) as failed:
        screen.say(f"The demo failed: {failed}")
        return 1
    finally:
        screen.close()
    return 0


def java_trouble(environment: Mapping[str, str] = os.environ) -> str | None:
    """Returns why Spark, which is started minutes later, would find no Java that it can use; None if it would. Spark
    prefers JAVA_HOME to the path."""
    home = environment.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environment.get("PATH"))
    where = f"JAVA_HOME is {home!r}" if home else f"java is {program or 'not on the path'}"
    if program is None or not Path(program).exists():
        return f"Spark needs Java {_JAVA} or later; {where}."
    said = subprocess.run([program, "-version"], check=False, capture_output=True, text=True).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < _JAVA:
        return f"Spark needs Java {_JAVA} or later; {where}, of version {found[1] if found else 'unknown'}."
    return None
