"""What comes of a merge: per table, and for the whole. Plain data, which may cross processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_provider_pgetl.engine.errors import TABLE_ERRORED, ErrorKind
from airflow_provider_pgetl.engine.sync.copying.outcome import Failure
from airflow_provider_pgetl.engine.tables import TableName


@dataclass(frozen=True, slots=True)
class MergeResult:
    """How one pass ended. Tables go by their names in the destination. `merged` says of each how many landed batches
    are in it now; `failed` are those that others finished without; `failure` ended the whole pass early."""

    merged: Mapping[TableName, int] = field(default_factory=dict)
    failed: Mapping[TableName, Failure] = field(default_factory=dict)
    failure: Failure | None = None

    @property
    def exit_code(self) -> int:
        if self.failure is not None:
            return self.failure.exit_code
        return TABLE_ERRORED if self.failed else 0

    def expect_whole(self) -> None:
        """Raise what stands between the landed changes and the readers of their tables."""
        failure = self.failure or next(iter(self.failed.values()), None)
        if failure is not None:
            raise failure.error

    def as_json(self) -> dict[str, Any]:
        return {
            "merged": [{"of": asdict(table), "batches": batches} for table, batches in self.merged.items()],
            "failed": [{"of": asdict(table), **asdict(failure)} for table, failure in self.failed.items()],
            "failure": None if self.failure is None else asdict(self.failure),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MergeResult:
        return cls(
            {TableName(**one["of"]): one["batches"] for one in data["merged"]},
            {TableName(**one["of"]): _failure(one) for one in data["failed"]},
            None if data["failure"] is None else _failure(data["failure"]),
        )


def _failure(data: Mapping[str, Any]) -> Failure:
    return Failure(ErrorKind(data["kind"]), data["message"], data["remedy"], data["table"])
