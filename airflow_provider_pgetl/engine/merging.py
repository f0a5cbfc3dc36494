"""One pass over a pipeline's tables: what has landed for each when its turn comes is merged into it.

The pass needs the destination and nothing else: neither source nor store, and no lease. A table that cannot be merged
does not keep the others from it; trouble that concerns them all ends the pass. Whatever was merged stays.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Protocol

from airflow_provider_pgetl.engine.config.jobs import MergeJob
from airflow_provider_pgetl.engine.config.secrets import resolve
from airflow_provider_pgetl.engine.destinations.protocol import Answer, Destination, Item, Merging, Positions, Spread
from airflow_provider_pgetl.engine.destinations.registry import open_destination
from airflow_provider_pgetl.engine.model.errors import TABLE_ERRORED, ErrorData, ErrorKind, PgetlError, told_by_spark
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import Noted, Observer
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.engine.runtime.threads import Flag, persistently

# ----------------------------------------------------------------------------------------------------------------------
# Where the tasks of a merge run: in threads of this process, on the executors of a Spark, on a Spark Connect server.
#
# A task's failure comes back as data; an exception would not survive the way. Passing trouble is waited out in the
# task. What Spark itself cannot run to its end, however often it tries, ends the merge.

log = logging.getLogger(__name__)


def answered(function: Callable[[Item], Answer], item: Item) -> Answer | ErrorData:
    """What a task does, wherever it runs."""
    try:
        return persistently(lambda: function(item))
    except PgetlError as error:
        return ErrorData.of(error)
    except Exception as defect:
        # Whatever a library raises must not be taken for the end of Spark.
        log.exception("A task failed")
        return ErrorData.of(PgetlError(ErrorKind.INTERNAL, f"A task met {type(defect).__name__}: {defect}."))


def received(answers: Sequence[Answer | ErrorData]) -> list[Answer | PgetlError]:
    return [answer.error if isinstance(answer, ErrorData) else answer for answer in answers]


def given_up(words: str) -> PgetlError:
    return PgetlError(
        ErrorKind.RESOURCES,
        f"Spark gave up the merge: {told_by_spark(words)}",
        remedy="Look into the executors' logs; then merge again: what has landed is safe.",
    )


class InThreads:
    """In this process, a few at once."""

    def __init__(self, workers: int = 2) -> None:
        self._workers = workers

    def __call__(self, function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer | PgetlError]:
        with ThreadPoolExecutor(self._workers, "pgetl merge") as pool:
            return received(list(pool.map(partial(answered, function), items)))


# -- What comes of a merge: per table, and for the whole. Plain data, which may cross processes. -----------------------


@dataclass(frozen=True, slots=True)
class MergeResult:
    """How one pass ended. Tables go by their names in the destination. `merged` says of each how many landed batches
    are in it now; `failed` are those that others finished without; `failure` ended the whole pass early."""

    merged: Mapping[TableName, int] = field(default_factory=dict)
    failed: Mapping[TableName, ErrorData] = field(default_factory=dict)
    failure: ErrorData | None = None

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


def _failure(data: Mapping[str, Any]) -> ErrorData:
    return ErrorData(ErrorKind(data["kind"]), data["message"], data["remedy"], data["table"])


# -- Merging. ----------------------------------------------------------------------------------------------------------


def merge_landed(job: MergeJob, spread: Spread, observer: Observer, stop: threading.Event) -> MergeResult:
    """Never raises: what went wrong is in the result."""
    done = _Pass(job.spec.id, spread, observer, stop)
    try:
        with _opened(job) as destination:
            done.run(destination)
    except PgetlError as error:
        return MergeResult(done.merged, done.failed, ErrorData.of(error))
    return MergeResult(done.merged, done.failed)


class _Pass:
    def __init__(self, pipeline: str, spread: Spread, observer: Observer, stop: threading.Event) -> None:
        self._pipeline = pipeline
        self._spread = spread
        self._observer = observer
        self._stop = stop
        self.merged: dict[TableName, int] = {}
        self.failed: dict[TableName, ErrorData] = {}

    def run(self, destination: Destination) -> None:
        """Over all tables: one that has nothing to merge may still have what a merge that died has left."""
        if not isinstance(destination, Merging) or not isinstance(destination, Positions):
            return
        for table in sorted(destination.positions(self._pipeline)):
            if self._stop.is_set():
                return
            try:
                self._merge(destination, table)
            except PgetlError as error:
                if error.table is None:
                    raise
                self.failed[table] = ErrorData.of(error)

    def _merge(self, destination: Merging, table: TableName) -> None:
        done = destination.merge(self._pipeline, table, self._spread, self._stop.is_set)
        if not done.batches:
            return
        self.merged[table] = done.batches
        said = f"{written(table)}: {done.batches} landed batches are merged, up to {done.position}."
        self._observer(Noted("info", said, table))


def backlog(destination: Destination, pipeline: str) -> dict[TableName, Boundary]:
    """Where the tables stand that are further than their readers see; by their names in the destination."""
    if not isinstance(destination, Merging) or not isinstance(destination, Positions):
        return {}
    merged = destination.merged(pipeline)
    positions = destination.positions(pipeline)
    return {table: there.position for table, there in positions.items() if there.position != merged.get(table)}


def is_merged(destination: Destination, pipeline: str, known: Mapping[TableName, Boundary]) -> bool:
    """Whether nothing of that backlog is left, whatever has landed since. A copy under way has voided its own."""
    left = backlog(destination, pipeline)
    merged = destination.merged(pipeline) if isinstance(destination, Merging) else {}
    return all(table not in left or merged.get(table, position) >= position for table, position in known.items())


@contextmanager
def _opened(job: MergeJob) -> Iterator[Destination]:
    spec = job.spec.destination
    uri = None if spec.uri is None else resolve(spec.uri)
    destination = open_destination(spec, uri, job.spec.id, "merge")
    try:
        yield destination
    finally:
        destination.shutdown()


# -- A merge under way, in whatever process. ---------------------------------------------------------------------------

_LOOK_SECONDS = 0.3
_GRACE_SECONDS = 8.0


class RunningMerge(Protocol):
    def wait(self, timeout: float | None = None) -> MergeResult | None:
        """How it ended; None while it has not."""

    def stop(self, grace: float) -> MergeResult:
        """End it, by force if it must be."""


LaunchMerge = Callable[[MergeJob], RunningMerge]


def awaited(running: RunningMerge, stop: Flag) -> MergeResult:
    """How it ended, by itself or because it was to stop. What it has committed stays in any case."""
    try:
        while not stop.is_set():
            result = running.wait(_LOOK_SECONDS)
            if result is not None:
                return result
    finally:
        running.stop(_GRACE_SECONDS)
    return MergeResult()


class LocalMerge:
    """In threads of this process: where there is no Spark."""

    def __init__(self, job: MergeJob, observer: Observer) -> None:
        self._job = job
        self._observer = observer
        self._stop = threading.Event()
        self._result: MergeResult | None = None
        self._thread = threading.Thread(target=self._run, name="pgetl merge", daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> MergeResult | None:
        self._thread.join(timeout)
        return None if self._thread.is_alive() else self._ended()

    def stop(self, grace: float) -> MergeResult:
        self._stop.set()
        self._thread.join(grace)
        return self._ended()

    def _ended(self) -> MergeResult:
        return self._result or MergeResult()

    def _run(self) -> None:
        self._result = merge_landed(self._job, InThreads(), self._observer, self._stop)
