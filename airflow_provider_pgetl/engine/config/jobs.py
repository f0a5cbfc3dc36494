"""Copy jobs and merge jobs, their results, and the messages between a supervisor and the streaming process.

Jobs are the form in which a command line or a DAG passes a copy or a merge to Spark. They contain no secrets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeVar

from airflow_provider_pgetl.engine.config import validation
from airflow_provider_pgetl.engine.config.spec import PipelineSpec
from airflow_provider_pgetl.engine.model.errors import TABLE_ERRORED, ErrorData, ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName


@dataclass(frozen=True, slots=True)
class CopyTable:
    """A table of the source, and its name in the destination. `replaces`: the copy may replace rows there that the
    pipeline did not write."""

    source: TableName
    destination: TableName
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class CopyJob:
    """The copy of one sync group. `snapshot_only`: no stream will follow, so no slot is kept. `attempt`: the copy
    attempt that was already started for it (`copy.admission`); None: the copy starts one."""

    spec: PipelineSpec
    tables: tuple[CopyTable, ...]
    snapshot_only: bool = False
    attempt: int | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "spec": validation.as_json(self.spec),
            "tables": [asdict(table) for table in self.tables],
            "snapshot_only": self.snapshot_only,
            "attempt": self.attempt,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CopyJob:
        tables = tuple(
            CopyTable(TableName(**one["source"]), TableName(**one["destination"]), one["replaces"])
            for one in data["tables"]
        )
        return cls(validation.from_json(PipelineSpec, data["spec"]), tables, data["snapshot_only"], data["attempt"])


# -- A merge job: merge everything that has landed for a pipeline. It contains no secrets. -----------------------------


@dataclass(frozen=True, slots=True)
class MergeJob:
    spec: PipelineSpec

    def as_json(self) -> dict[str, Any]:
        return {"spec": validation.as_json(self.spec)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MergeJob:
        return cls(validation.from_json(PipelineSpec, data["spec"]))


# -- The order to the streaming process, and the last line that the process writes: one line of JSON each. -------------

MODULE = "airflow_provider_pgetl.engine.streaming_process"


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be streamed. `environment` holds the values of the declaration's references, secrets among them.

    `beat_seconds`: the supervisor sends a line at least this often; if none comes, the supervisor hangs and may have
    been replaced, so the worker ends. None: the supervisor sends none.
    """

    spec: PipelineSpec
    environment: Mapping[str, str] = field(repr=False)
    until_caught_up: bool = False
    beat_seconds: float | None = None

    def to_line(self) -> str:
        given = {
            "environment": dict(self.environment),
            "until_caught_up": self.until_caught_up,
            "beat_seconds": self.beat_seconds,
        }
        return json.dumps({"spec": self.spec.as_json(), **given})

    @classmethod
    def from_line(cls, line: str) -> Order:
        data = json.loads(line)
        spec = PipelineSpec.from_json(data["spec"])
        return cls(spec, data["environment"], data["until_caught_up"], data["beat_seconds"])


@dataclass(frozen=True, slots=True)
class Ending:
    """How the streaming process ended. Without an error, it was asked to end (`stopped`), or it had caught up.

    `fenced`: another worker has taken the pipeline over. `abandoned`: the supervisor had sent nothing for too long.
    """

    kind: str | None = None
    message: str = ""
    remedy: str = ""
    stopped: bool = False
    fenced: bool = False
    abandoned: bool = False

    def to_line(self) -> str:
        return json.dumps({"event": "ended", **asdict(self)}, ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str) -> Ending | None:
        try:
            data = json.loads(line)
        except ValueError:
            return None
        if not isinstance(data, dict) or data.pop("event", None) != "ended":
            return None
        return cls(**data)

    @property
    def error(self) -> PgetlError | None:
        if self.kind is None:
            return None
        return PgetlError(ErrorKind(self.kind), self.message, remedy=self.remedy)


# -- The results of copies and merges. Plain data that can be sent between processes. ----------------------------------
#
# A job runs in this process, in one of its threads, or as a Spark application: `Running` is what all of these have. An
# exception does not survive the transport from an executor to the driver; an `ErrorData` does.

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
