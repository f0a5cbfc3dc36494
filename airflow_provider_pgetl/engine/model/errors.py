"""Kinds of error: how each is retried, its exit code, and its remedy; and findings, which are problems found by checks.

The table `DIRECTIVES` maps each `ErrorKind` to a `Directive` (retry, exit code, remedy, scope). Code raises
`PgetlError` with a kind and a sentence that names the object concerned; the remedy comes from the table unless the code
that raises the error has a more specific one. `classify` gives errors of servers their kind, from the SQLSTATE alone.

Exit codes mean the same in every command and say who has to act: 2 the author of the pipeline file; 3 an administrator
of the servers, before anything can run (privileges, gaps in history and everything else that a preflight checks); 4 a
table is Errored and the other tables went on; 1 anything else, above all a server that cannot be reached.

Retry is one of
* ``in_place``: the trouble is temporary. The worker tries again with back-off, pausing its stream; no table changes
  phase.
* ``timed``: the table is Errored, and a timer rolls it back.
* ``copy``: the table is Errored, and a timer has it copied again: the cause is in the stream, so a rollback would fail
  again.
* ``manual``: the table is Errored until a person has acted.
* ``none``: trying again cannot help.

Scope is what an error concerns that occurs while one of several tables is processed: ``table``, this table only;
``named``, the table that the error names, if it names one; ``all``, all tables: the next one would meet it too, even if
the error names one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Self

Retry = Literal["in_place", "timed", "copy", "manual", "none"]
Scope = Literal["table", "named", "all"]


class ErrorKind(StrEnum):
    USAGE = "usage"
    CONFIG = "config"
    PREFLIGHT = "preflight"
    CONNECTION = "connection"
    AUTHENTICATION = "authentication"
    NO_DATABASE = "no_database"
    PRIVILEGE = "privilege"
    SLOT_LOST = "slot_lost"
    SLOT_IN_USE = "slot_in_use"
    LINEAGE = "lineage"
    FENCED = "fenced"
    COPY_DIED = "copy_died"
    TABLE_REWRITTEN = "table_rewritten"
    REWRITTEN_AGAIN = "rewritten_again"
    VALUE = "value"
    CONSTRAINT = "constraint"
    TYPE = "type"
    SCHEMA = "schema"
    TRANSFORM = "transform"
    UNSENT_VALUE = "unsent_value"
    UNKNOWN_ROW = "unknown_row"
    OCCUPIED = "occupied"
    OWNED = "owned"
    DAMAGED = "damaged"
    RESOURCES = "resources"
    STORE = "store"
    INTERNAL = "internal"

    @property
    def directive(self) -> Directive:
        return DIRECTIVES[self]

    @property
    def transient(self) -> bool:
        return self.directive.retry == "in_place"


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses, in seconds, that double with every failure in a row."""

    first: float
    longest: float

    def after(self, failures: int) -> float:
        """Returns the pause after so many failures in a row, at least one."""
        return min(self.first * 2.0 ** min(failures - 1, 30), self.longest)


@dataclass(frozen=True, slots=True)
class Directive:
    """How errors of one kind are handled; the fields are described above."""

    retry: Retry
    exit_code: int
    remedy: str
    scope: Scope = "all"

    @property
    def needs_action(self) -> bool:
        """Whether trying again cannot help, at least not before a person has acted."""
        return self.retry in ("manual", "none")


TABLE_ERRORED = 4

DIRECTIVES: dict[ErrorKind, Directive] = {
    ErrorKind.USAGE: Directive("none", 2, "See `pgetl --help`."),
    ErrorKind.CONFIG: Directive("none", 2, "Correct the pipeline file."),
    ErrorKind.PREFLIGHT: Directive("none", 3, "Settle the findings, then run `pgetl check` again."),
    ErrorKind.CONNECTION: Directive("in_place", 1, "Check that the server is up and reachable from here."),
    ErrorKind.AUTHENTICATION: Directive("manual", 1, "Check user, password and pg_hba.conf of that server."),
    ErrorKind.NO_DATABASE: Directive("manual", 1, "Create the database, or name one that exists in the URI."),
    ErrorKind.PRIVILEGE: Directive("manual", 3, "Grant what is missing, then roll the table back.", scope="table"),
    ErrorKind.SLOT_LOST: Directive(
        "none", 3, 'Reset the tables with `pgetl reset`, or set on_slot_lost = "resync" to copy them again.'
    ),
    ErrorKind.SLOT_IN_USE: Directive("in_place", 1, "End the other session that streams from this slot."),
    ErrorKind.LINEAGE: Directive(
        "none", 3, 'Point the pipeline at its own source again, or set on_slot_lost = "resync" to copy all tables.'
    ),
    ErrorKind.FENCED: Directive(
        "none", 1, "Another worker of this pipeline has taken over; nothing is to be done.", scope="named"
    ),
    ErrorKind.COPY_DIED: Directive(
        "timed", TABLE_ERRORED, "The copy is tried again by itself; its log says why it ended.", scope="named"
    ),
    ErrorKind.TABLE_REWRITTEN: Directive(
        "timed", TABLE_ERRORED, "It is copied again by itself; nothing has to be done.", scope="table"
    ),
    ErrorKind.REWRITTEN_AGAIN: Directive(
        "manual",
        TABLE_ERRORED,
        "It was so in each of its last copies: while the table is copied, keep VACUUM FULL, CLUSTER, ALTER TABLE and "
        "DROP away from it and its partitions, and so a TRUNCATE that is not replicated (of a partition alone, or "
        "where the publication leaves out truncate). Then roll the table back.",
        scope="table",
    ),
    ErrorKind.VALUE: Directive(
        "manual",
        TABLE_ERRORED,
        "Change the value or the destination's column, then roll the table back.",
        scope="table",
    ),
    ErrorKind.CONSTRAINT: Directive(
        "manual", TABLE_ERRORED, "Drop or relax the destination's constraint, then roll the table back.", scope="table"
    ),
    ErrorKind.TYPE: Directive(
        "manual", TABLE_ERRORED, "Create the type in the destination, then roll the table back.", scope="table"
    ),
    ErrorKind.SCHEMA: Directive(
        "manual", TABLE_ERRORED, "Make the destination's table fit the source's, then roll it back.", scope="table"
    ),
    ErrorKind.TRANSFORM: Directive(
        "manual",
        TABLE_ERRORED,
        "Correct the rule or the value, then roll the table back. `pgetl transform preview FILE` shows what rules do.",
        scope="table",
    ),
    ErrorKind.UNSENT_VALUE: Directive(
        "copy",
        TABLE_ERRORED,
        "It is copied again by itself. `ALTER TABLE … REPLICA IDENTITY FULL` at the source has such values sent.",
    ),
    ErrorKind.UNKNOWN_ROW: Directive(
        "manual",
        TABLE_ERRORED,
        "Its replica identity, or that of a partition, was changed at the source: make them alike, then copy the table "
        "again with `pgetl reset FILE TABLE`.",
        scope="table",
    ),
    ErrorKind.OCCUPIED: Directive(
        "manual", 3, "Make room for the table in the destination, then roll it back.", scope="table"
    ),
    ErrorKind.OWNED: Directive("none", 3, "Give this pipeline an id of its own."),
    ErrorKind.DAMAGED: Directive(
        "manual", TABLE_ERRORED, "Copy the table again, which makes it whole: `pgetl reset FILE TABLE`.", scope="table"
    ),
    ErrorKind.RESOURCES: Directive("in_place", 1, "Free disk space, memory or connections on that server."),
    ErrorKind.STORE: Directive("in_place", 1, "Check that the database with the state is up and reachable from here."),
    ErrorKind.INTERNAL: Directive(
        "manual", 1, "This is a defect of pgetl; please report it with its log.", scope="table"
    ),
}


class PgetlError(Exception):
    """An error with a message that names the object concerned, and a remedy. `table` is set where exactly one table is
    the cause."""

    def __init__(self, kind: ErrorKind, message: str, *, remedy: str | None = None, table: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.remedy = remedy or kind.directive.remedy
        self.table = table

    @property
    def directive(self) -> Directive:
        return self.kind.directive

    @property
    def transient(self) -> bool:
        return self.kind.transient

    @property
    def concerns_one_table(self) -> bool:
        """Whether this error, which occurred while one table was processed, concerns only that table."""
        scope = self.directive.scope
        return scope == "table" or (scope == "named" and self.table is not None)

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}"


def unforeseen(what: str, defect: Exception, table: str | None = None) -> PgetlError:
    """Wraps an exception that is not a `PgetlError`: a defect in pgetl or in a custom destination."""
    return PgetlError(ErrorKind.INTERNAL, f"{what} met {type(defect).__name__}: {defect}.", table=table)


class Fenced(PgetlError):
    """The destination or the store refused a write: the process that sent it no longer owns the pipeline."""

    def __init__(self, message: str, *, remedy: str | None = None, table: str | None = None) -> None:
        super().__init__(ErrorKind.FENCED, message, remedy=remedy, table=table)


class StateReplaced(Fenced):
    """The stored state is not the one that the process began with: it was destroyed, or set back to an earlier
    state."""


_BY_STATE: dict[str, ErrorKind] = {
    "28": ErrorKind.AUTHENTICATION,
    "3D000": ErrorKind.NO_DATABASE,
    "42501": ErrorKind.PRIVILEGE,
    "08": ErrorKind.CONNECTION,
    "57": ErrorKind.CONNECTION,
    "55006": ErrorKind.SLOT_IN_USE,
    "40": ErrorKind.CONNECTION,
    "55P03": ErrorKind.CONNECTION,
    "53": ErrorKind.RESOURCES,
    "58": ErrorKind.RESOURCES,
    "25006": ErrorKind.CONNECTION,
    "22": ErrorKind.VALUE,
    "54": ErrorKind.VALUE,
    "23": ErrorKind.CONSTRAINT,
    "2BP01": ErrorKind.SCHEMA,
    "42704": ErrorKind.TYPE,
    "42": ErrorKind.SCHEMA,
    "3F": ErrorKind.SCHEMA,
    "0A": ErrorKind.SCHEMA,
    "P0": ErrorKind.CONSTRAINT,
}


TOO_LARGE_TO_SEND = (
    "A value, or a row, would be 1 GB or more as PostgreSQL writes it, which it cannot; a bytea doubles where it is "
    "written as text. Make it smaller, or leave the column out with `columns`; a stream cannot get past one that it "
    "has come to, so then begin anew: `pgetl destroy FILE`."
)

REFUSED_BY_SOURCE = (
    "A row filter fails on a value, or the value cannot be converted. Correct the filter or the value for the time to "
    "come; a stream cannot get past a change that it has come to, so then begin anew: `pgetl destroy FILE`."
)


def is_too_large_to_send(words: str) -> bool:
    """Returns whether a server's message says that it cannot allocate that much memory for a value or a row; it reports
    this under a SQLSTATE for internal errors."""
    return "invalid memory alloc request size" in words or "string buffer" in words


def classify(sqlstate: str | None) -> ErrorKind:
    """Returns the kind of a server's error. No SQLSTATE means that the connection broke."""
    if sqlstate is None:
        return ErrorKind.CONNECTION
    return _BY_STATE.get(sqlstate) or _BY_STATE.get(sqlstate[:2]) or ErrorKind.INTERNAL


# -- Errors that cross processes, as data: an exception cannot be sent back from a Spark executor. ---------------------

# The last line of a Python traceback: not indented, and not a Java class.
_RAISED = re.compile(r"^(?!org\.|java\.|py4j\.)[A-Za-z_][\w.]*(?:Error|Exception): .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ErrorData:
    """A `PgetlError` as data."""

    kind: ErrorKind
    message: str
    remedy: str
    table: str | None = None

    @classmethod
    def of(cls, error: PgetlError) -> ErrorData:
        return cls(error.kind, error.message, error.remedy, error.table)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ErrorData:
        """Reads what `dataclasses.asdict` made; other keys are ignored."""
        return cls(ErrorKind(data["kind"]), data["message"], data["remedy"], data["table"])

    @property
    def error(self) -> PgetlError:
        return PgetlError(self.kind, self.message, remedy=self.remedy, table=self.table)

    @property
    def exit_code(self) -> int:
        return self.kind.directive.exit_code

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}"


def told_by_spark(words: str) -> str:
    """Returns the line to show of a Java message that may contain a Python traceback: the last exception that Python
    raised, else the first line."""
    raised = _RAISED.findall(words)
    first = words.partition("\n")[0]
    return (raised[-1] if raised else first).strip().rstrip(".:") + "."


# -- Findings of the checks before any work: problem and remedy, as data. ----------------------------------------------

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`error`: the pipeline cannot, or must not, run. `warning`: it can, at a risk. `note`: worth knowing.

    `table` is set where the finding concerns one table, `key` where it concerns one key of the declaration. `kind` is
    that of the error with which a run would end; if such an error only makes its table Errored, the run goes on without
    the table.
    """

    problem: str
    remedy: str
    severity: Severity = "error"
    table: str | None = None
    kind: ErrorKind = ErrorKind.PREFLIGHT
    key: tuple[str | int, ...] = ()

    @classmethod
    def of(cls, error: PgetlError) -> Self:
        return cls(error.message, error.remedy, table=error.table, kind=error.kind)

    @property
    def exit_code(self) -> int:
        return self.kind.directive.exit_code


class FoundWanting(PgetlError):
    """Findings with which work cannot go on. The message contains all of them, for callers that show only one
    sentence."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        first, *others = findings
        more = "".join(f"\n{other.problem} {other.remedy}" for other in others)
        super().__init__(first.kind, first.problem, remedy=first.remedy + more, table=None if others else first.table)
        self.findings = findings


def findings_of(error: PgetlError) -> tuple[Finding, ...]:
    return error.findings if isinstance(error, FoundWanting) else (Finding.of(error),)


def errors_of(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.severity == "error")


def refuse(findings: Iterable[Finding]) -> None:
    """Raises the errors among the findings as one, which has the kind of the first; ignores warnings and notes."""
    errors = errors_of(findings)
    if errors:
        raise FoundWanting(errors)
