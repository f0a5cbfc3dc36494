"""What comes of a copy: per range, per table, for the group. Plain data, which may cross processes.

An exception does not survive the way from an executor to the driver; a `Failure` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_provider_pgetl.engine.errors import DIRECTIVES, ErrorKind, PgetlError
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.tables import TableName

# The last line of a Python traceback: not indented, no Java class.
_RAISED = re.compile(r"^(?!org\.|java\.|py4j\.)[A-Za-z_][\w.]*(?:Error|Exception): .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Failure:
    """A `PgetlError` as data."""

    kind: ErrorKind
    message: str
    remedy: str
    table: str | None = None

    @classmethod
    def of(cls, error: PgetlError) -> Failure:
        return cls(error.kind, error.message, error.remedy, error.table)

    @property
    def error(self) -> PgetlError:
        return PgetlError(self.kind, self.message, remedy=self.remedy, table=self.table)

    @property
    def exit_code(self) -> int:
        return DIRECTIVES[self.kind].exit_code

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}"


@dataclass(frozen=True, slots=True)
class CopyResult:
    """How one attempt at a group ended.

    `published` are the tables whose rows are in the destination; `failed` those that were excluded, with the reason
    that the store has as well; `left_out` those that this attempt had no right to (somebody else copies them, or they
    were reset meanwhile) or no time for. `slot` is the group's slot if it was kept for the catch-up. `failure` is what
    ended the whole attempt early.
    """

    attempt: int
    published: tuple[TableName, ...] = ()
    failed: Mapping[TableName, Failure] = field(default_factory=dict)
    left_out: Mapping[TableName, str] = field(default_factory=dict)
    boundary: Boundary | None = None
    slot: str | None = None
    failure: Failure | None = None

    @property
    def exit_code(self) -> int:
        """0 when nothing failed, 4 when tables did, else that of what ended the attempt."""
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


def _failure(data: Mapping[str, Any]) -> Failure:
    return Failure(ErrorKind(data["kind"]), data["message"], data["remedy"], data["table"])


def told_by_spark(words: str) -> str:
    """Of Java's words and a Python traceback within them, the line for people: what Python raised, else the first."""
    raised = _RAISED.findall(words)
    first = words.partition("\n")[0]
    return (raised[-1] if raised else first).strip().rstrip(".:") + "."
