"""What a look before any work found: a problem and its remedy. How it is shown is somebody else's business."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

from airflow_provider_pgetl.engine.model.errors import DIRECTIVES, ErrorKind, PgetlError

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`error`: the pipeline cannot, or must not, run. `warning`: it can, at a risk. `note`: worth knowing.

    `table` is set where one table alone is meant, `key` where one key of the declaration is. `kind` is that of the
    error which a run would end with; of an error that only makes its table Errored, the run goes on without the table.
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
        return DIRECTIVES[self.kind].exit_code


class FoundWanting(PgetlError):
    """Findings that forbid going on. The message is that of all of them, for those who show but one sentence."""

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
    """Raise the errors among the findings as one, which is of the first one's kind; warnings and notes pass."""
    errors = errors_of(findings)
    if errors:
        raise FoundWanting(errors)
