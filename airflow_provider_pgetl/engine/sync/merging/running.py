"""A merge under way, in whatever process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from airflow_provider_pgetl.engine.reports import Observer
from airflow_provider_pgetl.engine.sync.merging.driver import merge_landed
from airflow_provider_pgetl.engine.sync.merging.job import MergeJob
from airflow_provider_pgetl.engine.sync.merging.outcome import MergeResult
from airflow_provider_pgetl.engine.sync.merging.spreading import InThreads
from airflow_provider_pgetl.engine.sync.runtime import Flag

_LOOK_SECONDS = 0.3
_GRACE_SECONDS = 8.0


class RunningMerge(Protocol):
    def wait(self, timeout: float | None = None) -> MergeResult | None:
        """How it ended; None while it has not."""

    def stop(self, grace: float) -> MergeResult:
        """End it, by force if it must be."""


LaunchMerge = Callable[[MergeJob], RunningMerge]


def awaited(running: RunningMerge, stop: Flag) -> MergeResult:
    """How it ended, by itself or because it was to stop. What it has committed stays in any case."""
    try:
        while not stop.is_set():
            result = running.wait(_LOOK_SECONDS)
            if result is not None:
                return result
    finally:
        running.stop(_GRACE_SECONDS)
    return MergeResult()


class LocalMerge:
    """In threads of this process: where there is no Spark."""

    def __init__(self, job: MergeJob, observer: Observer) -> None:
        self._job = job
        self._observer = observer
        self._stop = threading.Event()
        self._result: MergeResult | None = None
        self._thread = threading.Thread(target=self._run, name="pgetl merge", daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> MergeResult | None:
        self._thread.join(timeout)
        return None if self._thread.is_alive() else self._ended()

    def stop(self, grace: float) -> MergeResult:
        self._stop.set()
        self._thread.join(grace)
        return self._ended()

    def _ended(self) -> MergeResult:
        return self._result or MergeResult()

    def _run(self) -> None:
        self._result = merge_landed(self._job, InThreads(), self._observer, self._stop)
