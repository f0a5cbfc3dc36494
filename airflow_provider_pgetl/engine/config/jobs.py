"""Copy jobs, merge jobs, and the messages between a supervisor and the streaming process.

A copy job is the form in which a command line or a DAG passes a copy to Spark. Jobs contain no secrets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_provider_pgetl.engine.config import validation
from airflow_provider_pgetl.engine.config.spec import PipelineSpec
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
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
