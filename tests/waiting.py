"""Waiting for what threads, processes and servers bring about, never without a bound."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def until(
    condition: Callable[[], object],
    what: str = "what is waited for",
    timeout: float = 120.0,
    *,
    pause: float = 0.05,
    check: Callable[[], object] = lambda: None,
    told: Callable[[], object] = lambda: "",
) -> None:
    """`check` is called in each round and raises if the wait is in vain; `told` is shown when the time is up."""
    give_up_at = time.monotonic() + timeout
    while not condition():
        check()
        assert time.monotonic() < give_up_at, f"not within {timeout:g} s: {what}\n{told()}"
        time.sleep(pause)


async def until_in_loop(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """As `until`, while the event loop goes on; the condition may block."""
    give_up_at = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < give_up_at, f"not within {seconds:g} s"
        await asyncio.sleep(0.05)
