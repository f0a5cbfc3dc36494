"""Keeping the lease, from the moment that it was taken until the worker is over.

A thread of its own, because nothing that a worker does may hold it up: to take over a lake of many tables takes longer
than a lease lasts. It is renewed long before it ends. When it has gone to another epoch, or the store has been away for
as long as the lease lasts, the worker must end at once: from then on somebody else may own the pipeline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from airflow_provider_pgetl.engine.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.state.protocol import StateStore
from airflow_provider_pgetl.engine.sync.lease import LEASE_SECONDS
from airflow_provider_pgetl.engine.sync.runtime import THREADS, Runtime

log = logging.getLogger(__name__)


class LeaseKeeper:
    """`lost` is called, at most once, when the worker must end."""

    def __init__(
        self,
        store: StateStore,
        epoch: int,
        ttl: float,
        lost: Callable[[PgetlError], None],
        runtime: Runtime = THREADS,
    ) -> None:
        self._runtime = runtime
        self._store = store
        self._epoch = epoch
        self._ttl = ttl
        self._lost = lost
        self._renewed = runtime.monotonic()
        self._over = runtime.flag()
        self._thread = runtime.thread(self._run, "pgetl lease")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._over.wait(self._ttl / 6):
            try:
                self._renew()
            except PgetlError as error:
                self._lost(error)
                return
            except Exception as defect:  # without a lease another worker may begin, and this one would not know
                log.exception("The lease is not kept any more")
                self._lost(PgetlError(ErrorKind.INTERNAL, f"The lease could not be renewed: {defect!r}."))
                return

    def _renew(self) -> None:
        asked = self._runtime.monotonic()
        try:
            held = self._store.renew_lease(self._epoch, self._ttl)
        except Fenced:
            raise
        except PgetlError as error:
            log.warning("The lease could not be renewed: %s", error)
            if self._runtime.monotonic() - self._renewed > self._ttl:
                raise _out_of_reach(error) from error
            return
        if not held:
            raise _taken_over()
        self._renewed = asked


def expect_lease(store: StateStore, epoch: int) -> None:
    """It is renewed on the occasion: one that has run out while nobody took it is still ours."""
    if not store.renew_lease(epoch, LEASE_SECONDS):
        raise _taken_over()


def _taken_over() -> PgetlError:
    return Fenced("The lease of this streaming worker has gone to another.")


def _out_of_reach(error: PgetlError) -> PgetlError:
    message = f"The store has been out of reach for as long as the lease lasts. {error.message}"
    return PgetlError(error.kind, message, remedy=error.remedy)
