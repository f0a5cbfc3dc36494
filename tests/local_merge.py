"""A merge in threads of this process, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from airflow_provider_pgetl.engine.config.jobs import MergeJob, MergeResult
from airflow_provider_pgetl.engine.destinations.protocol import Answer, Item
from airflow_provider_pgetl.engine.merging import answered, merge_landed, received
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.reports import Observer


class InThreads:
    """Runs tasks in threads of this process, `workers` at a time."""

    def __init__(self, workers: int = 2) -> None:
        self._workers = workers

    def __call__(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer | PgetlError]:
        with ThreadPoolExecutor(self._workers, "pgetl merge") as pool:
            return received(list(pool.map(partial(answered, function), items)))


class LocalMerge:
    """Runs a merge in threads of this process, without Spark."""

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
