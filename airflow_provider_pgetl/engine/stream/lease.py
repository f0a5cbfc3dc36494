"""The lease, which makes a process the one streaming worker of a pipeline.

The holder of the lease in the store may stream. A lease is free when it has expired, and also when its holder was a
process of this machine that no longer exists: a killed worker leaves such a lease, and its successor need not wait for
it to expire. That lease is taken by compare-and-set on the epoch that was examined, so that only one of several workers
that start at once takes it. Taking the lease always raises the epoch. The epoch, not the lease, keeps an earlier worker
that is still alive from writing.

A worker waits for a lease that another worker keeps: for a bounded time where a person has started the worker and can
decide which of the two is wanted; without a bound, and with a line in the log each minute, where a supervisor keeps one
ready.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.model.quantities import format_duration
from airflow_provider_pgetl.engine.model.reports import Noted, Observer, nobody
from airflow_provider_pgetl.engine.model.results import Lease
from airflow_provider_pgetl.engine.runtime.processes import in_words
from airflow_provider_pgetl.engine.runtime.threads import THREADS, Flag, Runtime
from airflow_provider_pgetl.engine.state.store import StateStore

LEASE_SECONDS = 15.0
_ROUND_SECONDS = 0.5
_PATIENT_ROUND_SECONDS = 2.0
_TELL_SECONDS = 60.0


def take_lease(
    store: StateStore,
    stop: Flag,
    observer: Observer = nobody,
    patience: float | None = 2 * LEASE_SECONDS,
    runtime: Runtime = THREADS,
) -> Lease | None:
    """Waits until the lease is free and takes it. Returns None if `stop` was set while waiting. Raises a FENCED error
    if another worker keeps the lease for longer than `patience` seconds; a `patience` of None waits without a bound."""
    began = tell_at = runtime.monotonic()
    while not stop.is_set():
        held = store.lease()
        gone = held.epoch if held is not None and runtime.is_gone(held.holder) else None
        lease = store.acquire_lease(runtime.process(), LEASE_SECONDS, over=gone)
        if lease is not None:
            return lease
        now = runtime.monotonic()
        if patience is not None and now > began + patience:
            raise _held_elsewhere(store.lease())
        if held is not None and now >= tell_at:
            observer(Noted("info", _waiting(held, patience, now - began)))
            tell_at = now + _TELL_SECONDS
        stop.wait(_ROUND_SECONDS if now < began + 2 * LEASE_SECONDS else _PATIENT_ROUND_SECONDS)
    return None


def _waiting(held: Lease, patience: float | None, waited: float) -> str:
    who = f"Another run, {in_words(held.holder)}, holds this pipeline"
    if patience is not None:
        return f"{who}; waiting up to {format_duration(patience)} for it to end."
    since = f" (since {format_duration(waited)})" if waited >= 1 else ""
    return f"{who}, as epoch {held.epoch}; this one waits{since}, and takes over when that one ends or is gone."


def _held_elsewhere(lease: Lease | None) -> PgetlError:
    who = "" if lease is None else f", {in_words(lease.holder)}"
    remedy = "Stop that one, or let it go on: one is enough."
    return PgetlError(ErrorKind.FENCED, f"The pipeline is being streamed by another run{who}.", remedy=remedy)


# -- Keeping the lease, from the moment that it was taken until the worker ends. ---------------------------------------
#
# The lease has a thread of its own, because no work of a worker may delay its renewal: taking over a lake of many
# tables takes longer than a lease lasts. It is renewed long before it expires. When it has gone to another epoch, or
# the store has been unreachable for as long as the lease lasts, the worker must end at once: from then on another
# worker may own the pipeline.

log = logging.getLogger(__name__)


class LeaseKeeper:
    """Renews the lease until `stop`. `lost` is called at most once, with the error that makes the worker end."""

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
            except Exception as defect:  # without the lease another worker may begin, unnoticed by this one
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
    """Raises `Fenced` unless this worker still holds the lease. Renews it as well: a lease that has expired but that no
    other worker took is still held."""
    if not store.renew_lease(epoch, LEASE_SECONDS):
        raise _taken_over()


def _taken_over() -> PgetlError:
    return Fenced("The lease of this streaming worker has gone to another.")


def _out_of_reach(error: PgetlError) -> PgetlError:
    message = f"The store has been out of reach for as long as the lease lasts. {error.message}"
    return PgetlError(error.kind, message, remedy=error.remedy)
