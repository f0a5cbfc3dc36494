"""When to tell the server how far we are. Pure: time is a number that the caller passes in, of a monotonic clock.

Feedback is due
* when a keepalive asked for it: at once;
* when the boundary has moved on: but not more often than every `PROGRESS_INTERVAL`;
* when nothing happens: several times within `wal_sender_timeout`, so that one lost moment does not cost the connection.

**A server that is shutting down** lets its walsenders go only when everything sent is confirmed. Until then it asks
again right after each of our answers, at one position: a flood. An idle server asks too, but only half a
`wal_sender_timeout` after it last heard from us. So requests at one position that each come promptly after what we
sent, several of them in a row, are the flood, and nothing else is. While it lasts answers are spaced out, else both
sides would spin. What to do about it is the caller's business; `flooded_for` says how long it has lasted.
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
    """The bookkeeping of one connection. Tell it of every keepalive and of everything sent; ask it what is due."""

    def __init__(self, now: float, sender_timeout: float | None) -> None:
        """`sender_timeout` is the server's `wal_sender_timeout` in seconds, None where it is switched off."""
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
            # One that came before we answered the last says nothing about how it takes our answers.
            self._requests += 1 if answered else 0
            return
        self._position = keepalive.position
        self._requests = 1
        self._first_request = now

    def sent(self, now: float, boundary: Boundary) -> None:
        """Feedback went out."""
        self._asked = False
        self._sent_at = now
        self._sent = boundary

    # -- what follows from it -----------------------------------------------------------------------------------------

    def due(self, now: float, boundary: Boundary) -> bool:
        """Whether to send `boundary` now."""
        return self.due_in(now, boundary) <= 0

    def due_in(self, now: float, boundary: Boundary) -> float:
        """Seconds until feedback is due, unless something else happens before."""
        return max(0.0, self._sent_at + self._interval(boundary) - now)

    def _interval(self, boundary: Boundary) -> float:
        if self._asked:
            return FLOOD_ANSWER_INTERVAL if self._flooded else 0.0
        return PROGRESS_INTERVAL if boundary > self._sent else self._idle_interval

    def flooded_for(self, now: float) -> float | None:
        """Seconds since the server began to flood us with requests; None if it does not: it is not shutting down."""
        return now - self._first_request if self._flooded else None

    @property
    def _flooded(self) -> bool:
        return self._requests >= FLOOD_REQUESTS
