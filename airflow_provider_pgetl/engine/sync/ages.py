"""Since when a stream's oldest change waits to be durable. Pure: the times are those of the source's commits.

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

    def committed(self, end: Boundary, at: float) -> None:
        if self._waiting and at - self._waiting[-1][1] < self._grain:
            last, since = self._waiting[-1]
            self._waiting[-1] = (max(last, end), since)  # after a reconnect commits come a second time
            return
        self._waiting.append((end, at))
        if len(self._waiting) > _MOST:
            self._grow_coarser()

    def oldest(self, durable: Boundary) -> float | None:
        """When the oldest commit beyond `durable` was; None if there is none."""
        while self._waiting and self._waiting[0][0] <= durable:
            self._waiting.popleft()
        if not self._waiting:
            self._grain = _GRAIN_SECONDS
            return None
        return self._waiting[0][1]

    def _grow_coarser(self) -> None:
        self._grain *= 2
        entries = list(self._waiting)
        pairs = (entries[number : number + 2] for number in range(0, len(entries), 2))
        self._waiting = deque((pair[-1][0], pair[0][1]) for pair in pairs)
