"""What a failure means for a table that is being copied: whom it concerns, and when it is tried again."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.phases import Errored, FinishedCopy, RetryPolicy
from airflow_provider_pgetl.engine.state.protocol import HistoryEntry

_FIRST_DELAY = 5.0
_LONGEST_DELAY = 1800.0
_REWRITTEN_COPIES = 3

_POISON = frozenset(
    {
        ErrorKind.PRIVILEGE,
        ErrorKind.TABLE_REWRITTEN,
        ErrorKind.REWRITTEN_AGAIN,
        ErrorKind.VALUE,
        ErrorKind.CONSTRAINT,
        ErrorKind.TYPE,
        ErrorKind.SCHEMA,
        ErrorKind.UNKNOWN_ROW,
        ErrorKind.OCCUPIED,
        ErrorKind.DAMAGED,
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
        case "in_place" | "timed" | "copy":
            return RetryPolicy("timed", now + delay(history))
        case "manual":
            return RetryPolicy("manual")
        case "none":
            return RetryPolicy("none")


def judged(error: PgetlError, history: Sequence[HistoryEntry]) -> PgetlError:
    """The error, or, if the last copies of a table have ended with it one after the other, and one more would end like
    them, the error that leaves the table to a person."""
    if error.kind is not ErrorKind.TABLE_REWRITTEN or _in_a_row(error.message, history) < _REWRITTEN_COPIES - 1:
        return error
    return PgetlError(ErrorKind.REWRITTEN_AGAIN, error.message, table=error.table)


def _in_a_row(reason: str, history: Sequence[HistoryEntry]) -> int:
    """How many copies have failed for this reason since one failed for another, succeeded, or was left to a person."""
    failures = 0
    for entry in reversed(history):
        match entry.state.phase:
            case Errored(reason=known, retry_policy=RetryPolicy(kind="timed")) if known == reason:
                failures += 1
            case Errored() | FinishedCopy():
                break
            case _:
                continue
    return failures


def delay(history: Sequence[HistoryEntry]) -> float:
    """Longer with every failure since the table was last copied."""
    failures = 0
    for entry in history:
        if isinstance(entry.state.phase, FinishedCopy):
            failures = 0
        elif isinstance(entry.state.phase, Errored):
            failures += 1
    return float(min(_FIRST_DELAY * 2 ** min(failures, 20), _LONGEST_DELAY))
