"""Becoming the one streaming worker of a pipeline.

The lease in the store says who may stream. One that expired is free; so is one whose holder was a process of this very
machine that is no more, which is what a killed worker leaves: nobody has to wait for its time to run out. Such a lease
is taken by the epoch that was judged, so that of several starters who judge it at once only one takes it. Taking the
lease always raises the epoch, and the epoch, not the lease, is what keeps a worker that was only thought dead from
writing.

A lease that another worker keeps is waited for: for a bounded time where a person has started the worker and can decide
which of the two is wanted; without a bound, and with a line in the log each minute, where a supervisor keeps one ready.
"""

from __future__ import annotations

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.processes import in_words
from airflow_provider_pgetl.engine.quantities import format_duration
from airflow_provider_pgetl.engine.reports import Noted, Observer, nobody
from airflow_provider_pgetl.engine.state.protocol import Lease, StateStore
from airflow_provider_pgetl.engine.sync.runtime import THREADS, Flag, Runtime

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
    """The lease, once it is free; None if `stop` was set while waiting. While another worker keeps it for longer than
    `patience`: an error. `patience` None waits without a bound."""
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
