"""What a failure means for a table that is being copied: whom it concerns, and when it is tried again."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.phases import Errored, FinishedCopy, RetryPolicy
from airflow_provider_pgetl.engine.state.protocol import HistoryEntry

_FIRST_DELAY = 5.0
_LONGEST_DELAY = 1800.0

_POISON = frozenset(
    {
        ErrorKind.PRIVILEGE,
        ErrorKind.TABLE_REWRITTEN,
        ErrorKind.VALUE,
        ErrorKind.CONSTRAINT,
        ErrorKind.TYPE,
        ErrorKind.SCHEMA,
        ErrorKind.OCCUPIED,
        ErrorKind.INTERNAL,
    }
)


def unforeseen(what: str, defect: Exception, table: str | None = None) -> PgetlError:
    """An exception that is none of ours: a defect, here or in a person's own destination."""
    return PgetlError(ErrorKind.INTERNAL, f"{what} met {type(defect).__name__}: {defect}.", table=table)


def concerns_one_table(error: PgetlError) -> bool:
    """Whether an error met while one table was dealt with leaves the other tables alone.

    Trouble with a server does not, even when a table was named: the next one would meet it too.
    """
    named = error.kind in (ErrorKind.COPY_DIED, ErrorKind.FENCED) and error.table is not None
    return named or error.kind in _POISON


def retry_policy(error: PgetlError, history: Sequence[HistoryEntry], now: float) -> RetryPolicy:
    """What the table of errors says. Trouble that passes has outlasted all patience here: it is left to the clock."""
    match error.directive.retry:
        case "in_place" | "timed":
            return RetryPolicy("timed", now + delay(history))
        case "manual":
            return RetryPolicy("manual")
        case "none":
            return RetryPolicy("none")


def delay(history: Sequence[HistoryEntry]) -> float:
    """Longer with every failure since the table was last copied."""
    failures = 0
    for entry in history:
        if isinstance(entry.state.phase, FinishedCopy):
            failures = 0
        elif isinstance(entry.state.phase, Errored):
            failures += 1
    return float(min(_FIRST_DELAY * 2 ** min(failures, 20), _LONGEST_DELAY))
