"""One merge pass over the tables of a pipeline. When a table's turn comes, the changes that have landed for it are
merged into it.

The pass needs only the destination: no source, no store, no lease. A table that cannot be merged does not prevent the
others from being merged; an error that concerns all of them ends the pass. Tables that were merged stay merged.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from airflow_provider_pgetl.engine.config.jobs import MergeJob, MergeResult, Running
from airflow_provider_pgetl.engine.config.secrets import resolve
from airflow_provider_pgetl.engine.destinations.protocol import (
    Answer,
    Destination,
    Item,
    Merging,
    Positions,
    Spread,
    opened_destination,
)
from airflow_provider_pgetl.engine.model.errors import ErrorData, ErrorKind, PgetlError, told_by_spark, unforeseen
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.reports import Noted, Observer
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.engine.runtime.threads import Flag, persistently

# ----------------------------------------------------------------------------------------------------------------------
# Where the tasks of a merge run: on the executors of a Spark cluster, or on a Spark Connect server.
#
# A task returns its failure as data, because an exception does not survive the transport. Transient errors are retried
# in the task. A task that Spark cannot complete, despite its retries, ends the merge.

log = logging.getLogger(__name__)


def answered(function: Callable[[Item], Answer], item: Item) -> Answer | ErrorData:
    """Runs one task, on any of the above; returns its answer or its error."""
    try:
        return persistently(lambda: function(item))
    except PgetlError as error:
        return ErrorData.of(error)
    except Exception as defect:
        # An exception of a library must not be taken for a failure of Spark.
        log.exception("A task failed")
        return ErrorData.of(unforeseen("A task", defect))


def received(answers: Sequence[Answer | ErrorData]) -> list[Answer | PgetlError]:
    return [answer.error if isinstance(answer, ErrorData) else answer for answer in answers]


def given_up(words: str) -> PgetlError:
    return PgetlError(
        ErrorKind.RESOURCES,
        f"Spark gave up the merge: {told_by_spark(words)}",
        remedy="Look into the executors' logs; then merge again: what has landed is safe.",
    )


# -- The pass. ---------------------------------------------------------------------------------------------------------


def merge_landed(job: MergeJob, spread: Spread, observer: Observer, stop: threading.Event) -> MergeResult:
    """Runs the pass. Does not raise a `PgetlError`: the result contains it."""
    done = _Pass(job.spec.id, spread, observer, stop)
    try:
        spec = job.spec.destination
        uri = None if spec.uri is None else resolve(spec.uri)
        with opened_destination(spec, uri, job.spec.id, "merge") as destination:
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
        """Merges all tables. A table without landed changes is included, because a merge that died may have left files
        to remove."""
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
    """Returns the positions of the tables for which more has landed than readers see, by their names in the
    destination."""
    if not isinstance(destination, Merging) or not isinstance(destination, Positions):
        return {}
    merged = destination.merged(pipeline)
    positions = destination.positions(pipeline)
    return {table: there.position for table, there in positions.items() if there.position != merged.get(table)}


def is_merged(destination: Destination, pipeline: str, known: Mapping[TableName, Boundary]) -> bool:
    """Returns whether nothing is left of the backlog `known`, whatever has landed since. A table that is being copied
    has discarded its backlog."""
    left = backlog(destination, pipeline)
    merged = destination.merged(pipeline) if isinstance(destination, Merging) else {}
    return all(table not in left or merged.get(table, position) >= position for table, position in known.items())


# -- A running merge, in this or another process. ----------------------------------------------------------------------

_LOOK_SECONDS = 0.3
_GRACE_SECONDS = 8.0


LaunchMerge = Callable[[MergeJob], Running[MergeResult]]


def awaited(running: Running[MergeResult], stop: Flag) -> MergeResult:
    """Waits for the merge to end, and ends it when `stop` is set. What it has committed remains in either case."""
    try:
        while not stop.is_set():
            result = running.wait(_LOOK_SECONDS)
            if result is not None:
                return result
    finally:
        running.stop(_GRACE_SECONDS)
    return MergeResult()
