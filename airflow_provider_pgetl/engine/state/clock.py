"""The time by the store's clock, without asking it each time.

What is due is stored by one machine and judged by another, and their clocks differ; so both go by the store's. Between
two questions this machine's monotonic clock carries on, which nobody sets.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_provider_pgetl.engine.errors import PgetlError

_VALID_SECONDS = 60.0


class StoreClock:
    """`ask`: the seconds since the Unix epoch that the store's server reads now. While it is away its clock is taken to
    go on; it must have answered once."""

    def __init__(self, ask: Callable[[], float], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._monotonic = monotonic
        self._ahead: float | None = None
        self._asked_at = 0.0

    def now(self) -> float:
        now = self._monotonic()
        if self._ahead is None or now - self._asked_at >= _VALID_SECONDS:
            self._ahead = self._measured(self._ahead)
            self._asked_at = now
        return self._monotonic() + self._ahead

    def _measured(self, known: float | None) -> float:
        before = self._monotonic()
        try:
            answer = self._ask()
        except PgetlError:
            if known is None:
                raise
            return known
        return answer - (before + self._monotonic()) / 2
