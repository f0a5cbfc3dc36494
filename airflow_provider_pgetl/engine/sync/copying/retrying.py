"""Passing trouble is waited out in place, for a bounded time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeVar

from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.sync.runtime import THREADS, Runtime

T = TypeVar("T")

PATIENCE = 30.0
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0


def never() -> bool:
    return False


def persistently(
    action: Callable[[], T],
    stopped: Callable[[], bool] = never,
    patience: float = PATIENCE,
    runtime: Runtime = THREADS,
) -> T:
    """Do it again, for `patience` seconds, while it fails for reasons that pass. For actions that may be repeated."""
    give_up_at = runtime.monotonic() + patience
    for attempt in itertools.count():
        try:
            return action()
        except PgetlError as error:
            wait = pause(attempt, runtime)
            if not error.transient or stopped() or runtime.monotonic() + wait > give_up_at:
                raise
        runtime.sleep(wait)
    raise AssertionError("counting has no end")


def pause(attempt: int, runtime: Runtime = THREADS) -> float:
    """Seconds before the next attempt: doubling, and spread, so that many do not come back at once."""
    return min(_FIRST_PAUSE * float(2 ** min(attempt, 10)), _LONGEST_PAUSE) * runtime.uniform(0.5, 1.0)
