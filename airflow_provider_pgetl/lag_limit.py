"""When a pipeline counts as not far behind. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_pgetl.engine.quantities import parse_duration, parse_size

if TYPE_CHECKING:
    from airflow_provider_pgetl.engine.state.watching import Picture

# What was said longer ago says nothing about now.
_STALE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class LagLimit:
    """At most so many bytes of WAL, or so many seconds."""

    bytes: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, limit: str | timedelta) -> LagLimit:
        """A time, as `timedelta` or like ``"10s"``; or a size like ``"16MiB"``."""
        if isinstance(limit, timedelta):
            return cls(seconds=limit.total_seconds())
        if limit.strip().upper().endswith("B"):
            return cls(bytes=parse_size(limit))
        return cls(seconds=parse_duration(limit))

    def holds(self, picture: Picture) -> bool:
        """A pipeline that nobody streams is behind, however little it was when somebody last did."""
        lag = picture.lag
        if lag is None or not picture.streamed or lag.age > _STALE_SECONDS:
            return False
        return (self.bytes is None or lag.bytes <= self.bytes) and (self.seconds is None or lag.seconds <= self.seconds)
