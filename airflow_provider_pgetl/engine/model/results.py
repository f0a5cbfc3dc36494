"""The results of copies and merges. Plain data that can be sent between processes.

A job runs in this process, in one of its threads, or as a Spark application: `Running` is what all of these have. An
exception does not survive the transport from an executor to the driver; an `ErrorData` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

from airflow_provider_pgetl.engine.model.errors import TABLE_ERRORED, ErrorData
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName

Result_co = TypeVar("Result_co", covariant=True)


class Running(Protocol[Result_co]):
    """A running copy or merge, in this or another process."""

    def wait(self, timeout: float | None = None) -> Result_co | None:
        """Returns the result; None if the job has not ended yet."""

    def stop(self, grace: float) -> Result_co:
        """Ends the job, by force if it has not ended after `grace` seconds."""


class _Failures:
    """What the results of jobs have in common: `failed` maps tables that failed to their errors, `failure` is the error
    that ended the whole job early."""

    __slots__ = ()
    failed: Mapping[TableName, ErrorData]
    failure: ErrorData | None

    @property
    def exit_code(self) -> int:
        """Returns 0 if nothing failed, 4 if tables failed, otherwise the exit code of `failure`."""
        if self.failure is not None:
            return self.failure.exit_code
        return TABLE_ERRORED if self.failed else 0

    def _failures_as_json(self) -> dict[str, Any]:
        return {
            "failed": [{"of": asdict(table), **asdict(failure)} for table, failure in self.failed.items()],
            "failure": None if self.failure is None else asdict(self.failure),
        }


def _failed_of(data: Mapping[str, Any]) -> dict[TableName, ErrorData]:
    return {TableName(**one["of"]): ErrorData.from_json(one) for one in data["failed"]}


def _failure_of(data: Mapping[str, Any]) -> ErrorData | None:
    return None if data["failure"] is None else ErrorData.from_json(data["failure"])


@dataclass(frozen=True, slots=True)
class CopyResult(_Failures):
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

    def as_json(self) -> dict[str, Any]:
        return {
            "attempt": self.attempt,
            "published": [asdict(table) for table in self.published],
            "left_out": [{"of": asdict(table), "why": why} for table, why in self.left_out.items()],
            "boundary": None if self.boundary is None else str(self.boundary),
            "slot": self.slot,
            **self._failures_as_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CopyResult:
        return cls(
            data["attempt"],
            tuple(TableName(**table) for table in data["published"]),
            _failed_of(data),
            {TableName(**one["of"]): one["why"] for one in data["left_out"]},
            None if data["boundary"] is None else Boundary.parse(data["boundary"]),
            data["slot"],
            _failure_of(data),
        )


@dataclass(frozen=True, slots=True)
class MergeResult(_Failures):
    """How one pass ended. Tables are named as in the destination. `merged` maps each merged table to the number of
    landed batches that were merged into it; `failed` maps tables that could not be merged to their errors; `failure` is
    the error that ended the whole pass early."""

    merged: Mapping[TableName, int] = field(default_factory=dict)
    failed: Mapping[TableName, ErrorData] = field(default_factory=dict)
    failure: ErrorData | None = None

    def expect_whole(self) -> None:
        """Raises the first error that kept landed changes from being merged."""
        failure = self.failure or next(iter(self.failed.values()), None)
        if failure is not None:
            raise failure.error

    def as_json(self) -> dict[str, Any]:
        return {
            "merged": [{"of": asdict(table), "batches": batches} for table, batches in self.merged.items()],
            **self._failures_as_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MergeResult:
        return cls(
            {TableName(**one["of"]): one["batches"] for one in data["merged"]},
            _failed_of(data),
            _failure_of(data),
        )
