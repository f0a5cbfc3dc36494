"""What a look before any work found: a problem and its remedy. How it is shown is somebody else's business."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`error`: the pipeline cannot, or must not, run. `warning`: it can, at a risk. `note`: worth knowing.

    `table` is set where one table alone is meant.
    """

    problem: str
    remedy: str
    severity: Severity = "error"
    table: str | None = None


class FoundWanting(PgetlError):
    """Findings that forbid going on. The message is that of all of them, for those who show but one sentence."""

    def __init__(self, kind: ErrorKind, findings: tuple[Finding, ...]) -> None:
        first, *others = findings
        more = "".join(f"\n{other.problem} {other.remedy}" for other in others)
        super().__init__(kind, first.problem, remedy=first.remedy + more, table=None if others else first.table)
        self.findings = findings


def refuse(findings: Iterable[Finding], kind: ErrorKind = ErrorKind.PREFLIGHT) -> None:
    """Raise the errors among the findings as one; warnings and notes pass."""
    errors = tuple(finding for finding in findings if finding.severity == "error")
    if errors:
        raise FoundWanting(kind, errors)
