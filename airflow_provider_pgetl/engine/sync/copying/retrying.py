"""Passing trouble is waited out in place, for a bounded time."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from airflow_provider_pgetl.engine.errors import PgetlError

T = TypeVar("T")

ATTEMPTS = 5
_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0


def never() -> bool:
    return False


def persistently(action: Callable[[], T], stopped: Callable[[], bool] = never, attempts: int = ATTEMPTS) -> T:
    """Do it again while it fails for reasons that pass, then raise. For actions that may be repeated."""
    for attempt in range(attempts - 1):
        try:
            return action()
        except PgetlError as error:
            if not error.transient or stopped():
                raise
        time.sleep(pause(attempt))
    return action()


def pause(attempt: int) -> float:
    """Seconds before the next attempt: doubling, and spread, so that many do not come back at once."""
    return min(_FIRST_PAUSE * float(2**attempt), _LONGEST_PAUSE) * random.uniform(0.5, 1.0)
