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

from collections.abc import Callable

from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.model.quantities import format_duration
from airflow_provider_pgetl.engine.model.reports import Noted, Observer, nobody
from airflow_provider_pgetl.engine.model.results import Lease
from airflow_provider_pgetl.engine.runtime.processes import in_words
from airflow_provider_pgetl.engine.runtime.threads import THREADS, Flag, Renewal, Runtime
from airflow_provider_pgetl.engine.state.store import StateStore

LEASE_SECONDS = 15.0
_ROUND_SECONDS = 0.5
_PATIENT_ROUND_SECONDS = 2.0
_TELL_SECONDS = 60.0
_RENEWALS = 6  # while a lease lasts


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


def kept_lease(
    store: StateStore,
    epoch: int,
    ttl: float,
    lost: Callable[[PgetlError], None],
    runtime: Runtime = THREADS,
) -> Renewal:
    """Returns what renews the lease, once it is started. `lost` is called when another worker may own the pipeline,
    because the lease has gone to another epoch, or the store has been out of reach for as long as the lease lasts: the
    worker must end at once."""

    def said(error: PgetlError | None) -> None:
        if error is None:
            lost(_taken_over())
        else:
            lost(_out_of_reach(error) if error.transient else error)

    return Renewal("The lease", lambda: store.renew_lease(epoch, ttl), said, ttl, _RENEWALS, runtime)


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
