"""Becoming the one streaming worker of a pipeline.

The lease in the store says who may stream. One that expired is free; so is one whose holder was a process of this very
machine that is no more, which is what a killed worker leaves: nobody has to wait for its time to run out. Taking the
lease always raises the epoch, and the epoch, not the lease, is what keeps a worker that was only thought dead from
writing.
"""

from __future__ import annotations

import threading
import time

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.processes import in_words, is_gone, this_process
from airflow_provider_pgetl.engine.quantities import format_duration
from airflow_provider_pgetl.engine.reports import Noted, Observer, nobody
from airflow_provider_pgetl.engine.state.protocol import Lease, StateStore

LEASE_SECONDS = 15.0
_ROUND_SECONDS = 0.5


def take_lease(
    store: StateStore, stop: threading.Event, observer: Observer = nobody, patience: float = 2 * LEASE_SECONDS
) -> Lease | None:
    """The lease, once it is free; None if `stop` was set while waiting. While another worker keeps it: an error."""
    deadline = time.monotonic() + patience
    told = False
    while not stop.is_set():
        held = store.lease()
        if held is not None and is_gone(held.holder):
            store.raise_epoch()
        lease = store.acquire_lease(this_process(), LEASE_SECONDS)
        if lease is not None:
            return lease
        if time.monotonic() > deadline:
            raise _held_elsewhere(store.lease())
        if not told and held is not None:
            waiting = f"waiting up to {format_duration(patience)} for it to end"
            observer(Noted("info", f"Another run, {in_words(held.holder)}, holds this pipeline; {waiting}."))
            told = True
        stop.wait(_ROUND_SECONDS)
    return None


def _held_elsewhere(lease: Lease | None) -> PgetlError:
    who = "" if lease is None else f", {in_words(lease.holder)}"
    remedy = "Stop that one, or let it go on: one is enough."
    return PgetlError(ErrorKind.FENCED, f"The pipeline is being streamed by another run{who}.", remedy=remedy)
