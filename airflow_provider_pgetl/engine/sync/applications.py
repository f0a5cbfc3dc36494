"""The Spark applications: which program each is, what it is given, and how its last word is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from airflow_provider_pgetl.engine.config import PipelineSpec
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.sync.copying.outcome import CopyResult, Failure
from airflow_provider_pgetl.engine.sync.merging.outcome import MergeResult

# In the repository it is `spark_apps`, at its top.
_PROGRAMS = "airflow_provider_pgetl.spark_apps"

Result = TypeVar("Result")


class Job(Protocol):
    """What an application is asked to do; no secrets are in it."""

    @property
    def spec(self) -> PipelineSpec: ...

    def as_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Application(Generic[Result]):
    """A program of `spark_apps`. One that ended without telling a result `died`, of which `failed` makes one."""

    name: str
    program: str
    read: Callable[[Mapping[str, Any]], Result]
    died: Callable[[str], PgetlError]
    failed: Callable[[PgetlError], Result]

    @property
    def result_event(self) -> str:
        """The event by which it tells its result."""
        return f"{self.name}_ended"

    @property
    def path(self) -> Path:
        found = find_spec(f"{_PROGRAMS}.{self.program}")
        if found is None or found.origin is None:
            raise PgetlError(ErrorKind.INTERNAL, f"{_PROGRAMS}.{self.program} is not installed.")
        return Path(found.origin)

    def wordless(self, how: str) -> Result:
        return self.failed(self.died(how))

    def title(self, job: Job) -> str:
        """As Spark shows it."""
        return f"pgetl {job.spec.id} {self.name}"


def _copy_died(how: str) -> PgetlError:
    return PgetlError(ErrorKind.COPY_DIED, how)


def _copy_failed(error: PgetlError) -> CopyResult:
    return CopyResult(0, failure=Failure.of(error))


def _merge_died(how: str) -> PgetlError:
    remedy = "Merge again: what has landed is safe, and what was merged stays."
    return PgetlError(ErrorKind.RESOURCES, how, remedy=remedy)


def _merge_failed(error: PgetlError) -> MergeResult:
    return MergeResult(failure=Failure.of(error))


COPY = Application("copy", "copy_table", CopyResult.from_json, _copy_died, _copy_failed)
MERGE = Application("merge", "merge_changes", MergeResult.from_json, _merge_died, _merge_failed)
