"""One pass over a pipeline's tables: what has landed for each when its turn comes is merged into it.

The pass needs the destination and nothing else: neither source nor store, and no lease. A table that cannot be merged
does not keep the others from it; trouble that concerns them all ends the pass. Whatever was merged stays.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from airflow_provider_pgetl.engine.destinations.opening import open_destination
from airflow_provider_pgetl.engine.destinations.protocol import Destination, Merging, Positions, Spread
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.reports import Noted, Observer
from airflow_provider_pgetl.engine.secrets import resolve
from airflow_provider_pgetl.engine.sync.copying.outcome import Failure
from airflow_provider_pgetl.engine.sync.merging.job import MergeJob
from airflow_provider_pgetl.engine.sync.merging.outcome import MergeResult
from airflow_provider_pgetl.engine.table_names import written
from airflow_provider_pgetl.engine.tables import TableName


def merge_landed(job: MergeJob, spread: Spread, observer: Observer, stop: threading.Event) -> MergeResult:
    """Never raises: what went wrong is in the result."""
    done = _Pass(job.spec.id, spread, observer, stop)
    try:
        with _opened(job) as destination:
            done.run(destination)
    except PgetlError as error:
        return MergeResult(done.merged, done.failed, Failure.of(error))
    return MergeResult(done.merged, done.failed)


class _Pass:
    def __init__(self, pipeline: str, spread: Spread, observer: Observer, stop: threading.Event) -> None:
        self._pipeline = pipeline
        self._spread = spread
        self._observer = observer
        self._stop = stop
        self.merged: dict[TableName, int] = {}
        self.failed: dict[TableName, Failure] = {}

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
                self.failed[table] = Failure.of(error)

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
