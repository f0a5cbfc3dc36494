"""When feedback must be sent to the server. Pure: the caller passes in the time of a monotonic clock.

Feedback is due
* when a keepalive requested a reply: at once;
* when the boundary has advanced: at most once every `PROGRESS_INTERVAL`;
* when nothing happens: several times within `wal_sender_timeout`, so that one delay does not cost the connection.

**A server that is shutting down** ends its walsenders only when everything sent is confirmed. Until then it requests
a reply again right after each of our answers, at one position: a flood. An idle server requests replies too, but only
half a `wal_sender_timeout` after it last received feedback. So several requests in a row at one position, each of which
comes promptly after our feedback, are the flood, and nothing else is. While it lasts answers are spaced out, as
otherwise both sides would spin. The caller decides what to do about it; `flooded_for` returns how long it has lasted.
"""

from __future__ import annotations

from airflow_provider_pgetl.engine.model.positions import START, Boundary
from airflow_provider_pgetl.engine.wal.protocol import Keepalive

PROGRESS_INTERVAL = 0.1
IDLE_INTERVAL = 10.0
FLOOD_REQUESTS = 5
FLOOD_ANSWER_INTERVAL = 0.1
_PROMPT = 0.5


class Feedback:
    """The feedback state of one connection. The caller reports every keepalive (`heard`) and all feedback sent
    (`sent`)."""

    def __init__(self, now: float, sender_timeout: float | None) -> None:
        """`sender_timeout` is the server's `wal_sender_timeout` in seconds, None where it is disabled."""
        self._idle_interval = min(IDLE_INTERVAL, sender_timeout / 4 if sender_timeout else IDLE_INTERVAL)
        self._prompt = min(_PROMPT, sender_timeout / 4 if sender_timeout else _PROMPT)
        self._sent_at = now
        self._sent = START
        self._asked = False
        self._position: Boundary | None = None
        self._requests = 0
        self._first_request = now

    # -- what happened ------------------------------------------------------------------------------------------------

    def heard(self, now: float, keepalive: Keepalive) -> None:
        """The server sent a keepalive."""
        if not keepalive.reply_requested:
            return
        answered, self._asked = not self._asked, True
        if keepalive.position == self._position and now - self._sent_at <= self._prompt:
            # A request that came before the last one was answered is no reaction to an answer.
            self._requests += 1 if answered else 0
            return
        self._position = keepalive.position
        self._requests = 1
        self._first_request = now

    def sent(self, now: float, boundary: Boundary) -> None:
        """Feedback with `boundary` was sent."""
        self._asked = False
        self._sent_at = now
        self._sent = boundary

    # -- what follows from it -----------------------------------------------------------------------------------------

    def due(self, now: float, boundary: Boundary) -> bool:
        """Returns whether `boundary` must be sent now."""
        return self.due_in(now, boundary) <= 0

    def due_in(self, now: float, boundary: Boundary) -> float:
        """Returns the seconds until feedback is due, unless a keepalive or a new boundary comes first."""
        return max(0.0, self._sent_at + self._interval(boundary) - now)

    def _interval(self, boundary: Boundary) -> float:
        if self._asked:
            return FLOOD_ANSWER_INTERVAL if self._flooded else 0.0
        return PROGRESS_INTERVAL if boundary > self._sent else self._idle_interval

    def flooded_for(self, now: float) -> float | None:
        """Returns the seconds since the flood of requests began; None without a flood: the server is not shutting
        down."""
        return now - self._first_request if self._flooded else None

    @property
    def _flooded(self) -> bool:
        return self._requests >= FLOOD_REQUESTS
