"""The results of a copy, per table and for the group. Plain data that can be sent between processes.

An exception does not survive the transport from an executor to the driver; an `ErrorData` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_provider_pgetl.engine.model.errors import ErrorData, ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import Errored, FinishedCopy, RetryPolicy
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.protocol import HistoryEntry


@dataclass(frozen=True, slots=True)
class CopyResult:
    """How one attempt at a group ended.

    `published` are the tables whose rows are in the destination; `failed` are the tables that were excluded, with the
    error that the store records as well; `left_out` are the tables that this attempt could not claim (another attempt
    copies them, or they were reset meanwhile) or had no time for. `slot` is the group's slot if it was kept for the
    catch-up. `failure` is the error that ended the whole attempt early.
    """

    attempt: int
    published: tuple[TableName, ...] = ()
    failed: Mapping[TableName, ErrorData] = field(default_factory=dict)
    left_out: Mapping[TableName, str] = field(default_factory=dict)
    boundary: Boundary | None = None
    slot: str | None = None
    failure: ErrorData | None = None

    @property
    def exit_code(self) -> int:
        """Returns 0 if nothing failed, 4 if tables failed, otherwise the exit code of `failure`."""
        if self.failure is not None:
            return self.failure.exit_code
        return 4 if self.failed else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "published": [asdict(table) for table in self.published],
            "failed": [{"of": asdict(table), **asdict(failure)} for table, failure in self.failed.items()],
            "left_out": [{"of": asdict(table), "why": why} for table, why in self.left_out.items()],
            "boundary": None if self.boundary is None else str(self.boundary),
            "slot": self.slot,
            "failure": None if self.failure is None else asdict(self.failure),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CopyResult:
        return cls(
            data["attempt"],
            tuple(TableName(**table) for table in data["published"]),
            {TableName(**one["of"]): _failure(one) for one in data["failed"]},
            {TableName(**one["of"]): one["why"] for one in data["left_out"]},
            None if data["boundary"] is None else Boundary.parse(data["boundary"]),
            data["slot"],
            None if data["failure"] is None else _failure(data["failure"]),
        )


def _failure(data: Mapping[str, Any]) -> ErrorData:
    return ErrorData(ErrorKind(data["kind"]), data["message"], data["remedy"], data["table"])


# -- Which tables share a snapshot. ------------------------------------------------------------------------------------
#
# A sync group costs the source a replication slot and one decoding of its WAL until its tables are handed over. One
# group per table would exhaust the slots of a server with many small tables; one group for all tables would make every
# table wait for the largest. So a table of `group_bytes` or more is a group of its own, and smaller ones are packed up
# to that size.

Group = tuple[TableName, ...]


def form_groups(sizes: Mapping[TableName, int], group_bytes: int) -> list[Group]:
    """Returns groups that contain every table once, the largest tables first. The same sizes always give the same
    groups.

    No group is larger than `group_bytes` unless it is a single table, and no two groups would fit into one.
    """
    groups: list[list[TableName]] = []
    filled: list[int] = []
    for table in sorted(sizes, key=lambda table: (-sizes[table], table)):
        place = _first_fit(filled, sizes[table], group_bytes)
        if place is None:
            groups.append([table])
            filled.append(sizes[table])
        else:
            groups[place].append(table)
            filled[place] += sizes[table]
    return [tuple(group) for group in groups]


def _first_fit(filled: list[int], size: int, limit: int) -> int | None:
    return next((place for place, used in enumerate(filled) if used + size <= limit), None)


# -- The consequences of an error for a table that is being copied: its scope and its retry. ---------------------------

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
    """Wraps an exception that is not a `PgetlError`: a defect in pgetl or in a custom destination."""
    return PgetlError(ErrorKind.INTERNAL, f"{what} met {type(defect).__name__}: {defect}.", table=table)


def concerns_one_table(error: PgetlError) -> bool:
    """Returns whether an error that occurred while one table was processed concerns only this table.

    Trouble with a server concerns all tables, even if the error names one: the next table would meet it too.
    """
    named = error.kind in (ErrorKind.COPY_DIED, ErrorKind.FENCED) and error.table is not None
    return named or error.kind in _POISON


def retry_policy(error: PgetlError, history: Sequence[HistoryEntry], now: float) -> RetryPolicy:
    """Returns the retry that the error's directive prescribes. A transient error has already outlasted all patience
    here, so it gets a timed retry."""
    match error.directive.retry:
        case "in_place" | "timed" | "copy":
            return RetryPolicy("timed", now + delay(history))
        case "manual":
            return RetryPolicy("manual")
        case "none":
            return RetryPolicy("none")


def judged(error: PgetlError, history: Sequence[HistoryEntry]) -> PgetlError:
    """Returns the error; or, if the last copies of the table have all ended with the same error and one more would end
    the same way, the error that leaves the table to manual action."""
    if error.kind is not ErrorKind.TABLE_REWRITTEN or _in_a_row(error.message, history) < _REWRITTEN_COPIES - 1:
        return error
    return PgetlError(ErrorKind.REWRITTEN_AGAIN, error.message, table=error.table)


def _in_a_row(reason: str, history: Sequence[HistoryEntry]) -> int:
    """Returns how many copies have failed for this reason since a copy failed for another reason, succeeded, or was
    left to manual action."""
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
    """Returns the seconds until the next attempt, which grow with every failure since the table was last copied."""
    failures = 0
    for entry in history:
        if isinstance(entry.state.phase, FinishedCopy):
            failures = 0
        elif isinstance(entry.state.phase, Errored):
            failures += 1
    return float(min(_FIRST_DELAY * 2 ** min(failures, 20), _LONGEST_DELAY))
