"""For how long a stream's oldest change has waited to be durable. Pure.

Both ends are read from the source's clock, as this machine's may differ from it: when a change was committed, and what
time the source said it was when it was last heard. In between this machine's monotonic clock, `now`, goes on.

Commits close to each other share an entry, which is as old as the first and waits for the last. The longer the queue,
the more share one, so that a stream that is held up for days remembers little, and its age is hardly less exact.
"""

from __future__ import annotations

from collections import deque

from airflow_provider_pgetl.engine.positions import Boundary

_GRAIN_SECONDS = 0.1
_MOST = 1000


class Ages:
    """Fed with commits in their order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Boundary, float]] = deque()
        self._grain = _GRAIN_SECONDS
        self._ahead: float | None = None

    def heard(self, at: float, now: float) -> None:
        """The source's clock reads `at`."""
        self._ahead = at - now

    def committed(self, end: Boundary, at: float, now: float) -> None:
        self._ahead = at - now if self._ahead is None else max(self._ahead, at - now)
        if self._waiting and at - self._waiting[-1][1] < self._grain:
            last, since = self._waiting[-1]
            self._waiting[-1] = (max(last, end), since)  # after a reconnect commits come a second time
            return
        self._waiting.append((end, at))
        if len(self._waiting) > _MOST:
            self._grow_coarser()

    def oldest(self, durable: Boundary, now: float) -> float:
        """The age in seconds of the oldest commit beyond `durable`; 0 if there is none."""
        while self._waiting and self._waiting[0][0] <= durable:
            self._waiting.popleft()
        if not self._waiting:
            self._grain = _GRAIN_SECONDS
            return 0.0
        return max(0.0, now + (self._ahead or 0.0) - self._waiting[0][1])

    def _grow_coarser(self) -> None:
        self._grain *= 2
        entries = list(self._waiting)
        pairs = (entries[number : number + 2] for number in range(0, len(entries), 2))
        self._waiting = deque((pair[-1][0], pair[0][1]) for pair in pairs)
