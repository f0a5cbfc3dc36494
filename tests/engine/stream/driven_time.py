"""Threads whose time passes by their waiting alone: no machine is too slow for them."""

from __future__ import annotations

import threading
import time
from typing import Any

from airflow_provider_pgetl.engine.runtime.threads import THREADS, Flag


class DrivenTime:
    """A runtime of real threads. Whoever waits for so many seconds finds at once that they have passed."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def flag(self) -> Flag:
        return _Flag(self)

    def __getattr__(self, name: str) -> Any:
        return getattr(THREADS, name)


class _Flag(threading.Event):
    def __init__(self, driven: DrivenTime) -> None:
        super().__init__()
        self._driven = driven

    def wait(self, timeout: float | None = None) -> bool:
        if not self.is_set():
            self._driven.now += timeout or 0.0
            time.sleep(0.001)
        return self.is_set()
