"""What follows when a child of the supervisor has ended: another child after a pause, or the end of the task. Pure; the
times are given.

* A child that died without a word is started again, with growing pauses; the fifth in a row ends the task.
* A child that a server's absence has ended is started again, with growing pauses, until the outage has lasted longer
  than is tolerated. An outage is over when a child has streamed.
* A child that was fenced is started again as well: another worker has the pipeline, and the new child waits for its
  lease. Where that other worker belongs to the same task (the task was cleared, or its trigger was moved to another
  triggerer), this trigger is cancelled while it waits, and has said nothing that Airflow could take for the task's end.
  Who is fenced again and again, though the lease was free, shares its destination with a pipeline of another store.
* A child that has not heard of its supervisor for too long is started again without further ado: this process stood
  still.
* Everything else is final.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_pgetl.engine.errors import DIRECTIVES, ErrorKind
from airflow_provider_pgetl.engine.quantities import format_duration
from airflow_provider_pgetl.engine.streaming_order import Ending

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
_LONGEST_PAUSE_IN_OUTAGE = 30.0
_CRASHES_MOST = 5
_LONG_ENOUGH = 300.0
_TELL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Again:
    """Another child, after so many seconds; `why` is for the log, empty where it was told less than a minute ago."""

    seconds: float
    why: str


@dataclass(slots=True)
class _Outage:
    since: float
    told: float = float("-inf")
    children: int = 0


class Restarts:
    """Asked once for each child. `outage_seconds`: how long an outage is tolerated, None without a bound."""

    def __init__(self, outage_seconds: float | None) -> None:
        self._outage_seconds = outage_seconds
        self._crashes = 0
        self._outage: _Outage | None = None

    def after(
        self, ending: Ending | None, last_words: str, *, began: float, now: float, streamed: bool
    ) -> Again | Ending:
        """`began`: when the child did; `last_words`: what it wrote to standard error last; `streamed`: whether it came
        to stream."""
        if streamed:
            self._outage = None
        if ending is None:
            return self._crashed("died", last_words, "", now - began)
        if ending.abandoned:
            return Again(0.0, "This triggerer stood still, and the streaming worker ended; another one is started.")
        if ending.fenced:
            return self._crashed("was fenced", ending.message, ending.remedy, now - began)
        if ending.kind is not None and DIRECTIVES[ErrorKind(ending.kind)].retry == "in_place":
            return self._out_of_reach(ending, now)
        return ending

    def _out_of_reach(self, ending: Ending, now: float) -> Again | Ending:
        outage = self._outage = self._outage or _Outage(now)
        lasted = now - outage.since
        if self._outage_seconds is not None and lasted >= self._outage_seconds:
            return replace(ending, message=f"{ending.message} It has been so for {format_duration(lasted)}.")
        outage.children += 1
        pause = min(_FIRST_PAUSE * 2**outage.children, _LONGEST_PAUSE_IN_OUTAGE)
        if now - outage.told < _TELL_SECONDS:
            return Again(pause, "")
        outage.told = now
        return Again(pause, f"{ending.message} {self._until(lasted)}")

    def _until(self, lasted: float) -> str:
        since = f"It has been so for {format_duration(lasted)}. " if lasted else ""
        if self._outage_seconds is None:
            return f"{since}The stream goes on when that has passed."
        bound = format_duration(self._outage_seconds)
        return f"{since}The stream goes on when that has passed, and the task fails if it lasts {bound}."

    def _crashed(self, how: str, words: str, remedy: str, ran: float) -> Again | Ending:
        self._crashes = 1 if ran > _LONG_ENOUGH else self._crashes + 1
        if self._crashes >= _CRASHES_MOST:
            message = f"The streaming worker {how} {self._crashes} times in a row; {words}"
            return Ending(ErrorKind.INTERNAL.value, message, remedy)
        pause = min(_FIRST_PAUSE * 2**self._crashes, _LONGEST_PAUSE)
        return Again(pause, f"The streaming worker {how} and is started again; {words}")
