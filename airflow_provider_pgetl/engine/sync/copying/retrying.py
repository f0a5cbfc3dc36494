"""Passing trouble is waited out in place, for a bounded time."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import TypeVar

from airflow_provider_pgetl.engine.errors import PgetlError

T = TypeVar("T")

PATIENCE = 30.0
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0


def never() -> bool:
    return False


def persistently(action: Callable[[], T], stopped: Callable[[], bool] = never, patience: float = PATIENCE) -> T:
    """Do it again, for `patience` seconds, while it fails for reasons that pass. For actions that may be repeated."""
    give_up_at = time.monotonic() + patience
    for attempt in itertools.count():
        try:
            return action()
        except PgetlError as error:
            wait = pause(attempt)
            if not error.transient or stopped() or time.monotonic() + wait > give_up_at:
                raise
        time.sleep(wait)
    raise AssertionError("counting has no end")


def pause(attempt: int) -> float:
    """Seconds before the next attempt: doubling, and spread, so that many do not come back at once."""
    return min(_FIRST_PAUSE * float(2 ** min(attempt, 10)), _LONGEST_PAUSE) * random.uniform(0.5, 1.0)
