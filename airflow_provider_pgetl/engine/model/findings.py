"""Findings of the checks before any work: a problem and its remedy, as data. Rendering them is left to the caller."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Self

from airflow_provider_pgetl.engine.model.errors import DIRECTIVES, ErrorKind, PgetlError

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
        return DIRECTIVES[self.kind].exit_code


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
