"""A copy in a thread of this process, for destinations that live in it."""

from __future__ import annotations

import logging
import threading

from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.reports import Observer
from airflow_provider_pgetl.engine.state.protocol import Store
from airflow_provider_pgetl.engine.sync.copying.driver import copy_group
from airflow_provider_pgetl.engine.sync.copying.failing import unforeseen
from airflow_provider_pgetl.engine.sync.copying.job import CopyJob
from airflow_provider_pgetl.engine.sync.copying.outcome import CopyResult, Failure
from airflow_provider_pgetl.engine.sync.copying.runners import LocalRunner

log = logging.getLogger(__name__)


class LocalCopy:
    """Begun at once."""

    def __init__(self, job: CopyJob, store: Store, observer: Observer) -> None:
        self._job = job
        self._store = store
        self._observer = observer
        self._stop = threading.Event()
        self._result: CopyResult | None = None
        self._thread = threading.Thread(target=self._run, name="pgetl copy", daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> CopyResult | None:
        self._thread.join(timeout)
        return None if self._thread.is_alive() else self._ended()

    def stop(self, grace: float) -> CopyResult:
        """A thread cannot be killed; what it still does after its grace, the attempt's number fences off."""
        self._stop.set()
        self._thread.join(grace)
        return self._ended()

    def _ended(self) -> CopyResult:
        return self._result or CopyResult(0)

    def _run(self) -> None:
        try:
            self._result = copy_group(self._job, self._store, LocalRunner(), self._observer, self._stop)
        except PgetlError as error:
            self._result = CopyResult(0, failure=Failure.of(error))
        except Exception as defect:  # a thread that dies silently looks like one that is done
            log.exception("A copy failed")
            self._result = CopyResult(0, failure=Failure.of(unforeseen("A copy", defect)))
