"""Becoming the one streaming worker of a pipeline.

The lease in the store says who may stream. One that expired is free; so is one whose holder was a process of this very
machine that is no more, which is what a killed worker leaves: nobody has to wait for its time to run out. Taking the
lease always raises the epoch, and the epoch, not the lease, is what keeps a worker that was only thought dead from
writing.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.state.protocol import Lease, StateStore

LEASE_SECONDS = 15.0
_ROUND_SECONDS = 0.5


def holder() -> str:
    """This process, such that no other process, now or later, has the same name."""
    return f"{socket.gethostname()}/{_boot()}/{os.getpid()}/{_started(os.getpid())}"


def take_lease(store: StateStore, stop: threading.Event, patience: float = 2 * LEASE_SECONDS) -> Lease | None:
    """The lease, once it is free; None if `stop` was set while waiting. While another worker keeps it: an error."""
    deadline = time.monotonic() + patience
    while not stop.is_set():
        held = store.lease()
        if held is not None and _is_dead(held.holder):
            store.raise_epoch()
        lease = store.acquire_lease(holder(), LEASE_SECONDS)
        if lease is not None:
            return lease
        if time.monotonic() > deadline:
            raise _held_elsewhere(store.lease())
        stop.wait(_ROUND_SECONDS)
    return None


def _held_elsewhere(lease: Lease | None) -> PgetlError:
    who = "another worker" if lease is None else f"the worker {lease.holder}"
    remedy = "Stop that worker, or let it go on: one is enough."
    return PgetlError(ErrorKind.FENCED, f"The pipeline is being streamed by {who}.", remedy=remedy)


def _is_dead(name: str) -> bool:
    """Whether it certainly was a process of this machine that has ended."""
    parts = name.split("/")
    if len(parts) != 4 or parts[:2] != [socket.gethostname(), _boot()]:
        return False
    return _started(int(parts[2])) != parts[3]


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        return "unknown"


def _started(pid: int) -> str:
    """When the process began, in clock ticks since boot; "" when there is none, or none can be seen."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""
