"""What a table's log records of a pipeline, as application transactions of its commits.

Each commit of pgetl carries all of them: the position, the generation, the copy attempts, the epoch of the last writer,
and the pipeline that has published what the table holds. An application transaction is a number under an application
id, so everything is encoded as a number.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.model.positions import START, Boundary

HOLDER = "pgetl/holder"  # the pipeline as a number, because transactions hold only numbers
_FORGOTTEN = -1  # a transaction can be overwritten in the log, but not removed
_FIELDS = ("position", "generation", "attempt", "published", "epoch", "cleared")


@dataclass(frozen=True, slots=True)
class LogState:
    """What a table's log records of a pipeline: the record, and the epoch that wrote last (0: none yet). `cleared` is
    used in a landing's log: the position of the table up to which the landing was emptied (`landing`)."""

    record: fencing.TableMetadata | None
    epoch: int = 0
    cleared: Boundary = START


class PipelineTransactions:
    """The application transactions of one pipeline."""

    def __init__(self, pipeline: str) -> None:
        self._ids = {name: f"pgetl/{pipeline}/{name}" for name in _FIELDS}
        self.number = pipeline_number(pipeline)

    @property
    def apps(self) -> list[str]:
        return list(self._ids.values())

    def are_in(self, numbers: Mapping[str, int]) -> bool:
        """Whether a commit with these transactions is one of the pipeline's own."""
        return all(app in numbers for app in self.apps)

    def read(self, numbers: Mapping[str, int | None]) -> LogState:
        found = {name: numbers[app] for name, app in self._ids.items()}
        epoch = found["epoch"] or 0
        if found["generation"] in (None, _FORGOTTEN):
            return LogState(None, epoch)
        published = found["published"] or 0
        position = Boundary(found["position"] or 0) if published else None
        record = fencing.TableMetadata(found["generation"], found["attempt"] or 0, published, position)
        return LogState(record, epoch, Boundary(found["cleared"] or 0))

    def write(self, log_state: LogState) -> dict[str, int]:
        record = log_state.record
        numbers = {"epoch": log_state.epoch, "generation": _FORGOTTEN}
        if record is not None:
            position = START if record.position is None else record.position
            numbers |= {
                "position": position.lsn,
                "generation": record.generation,
                "attempt": record.attempt,
                "published": 0 if record.position is None else record.published,
                "cleared": log_state.cleared.lsn,
            }
        return {self._ids[name]: number for name, number in numbers.items()}


def transactions_in(commit: bytes) -> dict[str, int]:
    """Returns the application transactions in a commit's file. Returns none for a file that cannot be parsed, for which
    delta-rs raises the error."""
    try:
        said = [json.loads(line)["txn"] for line in commit.splitlines() if line.startswith(b'{"txn"')]
    except ValueError:
        return {}
    return {one["appId"]: one["version"] for one in said}


def pipeline_number(pipeline: str) -> int:
    return int.from_bytes(hashlib.blake2b(pipeline.encode(), digest_size=7).digest())
