"""Removing what nobody needs any more, once it is older than `vacuum_retention`.

* What a commit has let go of goes when its tombstone is that old: longer than anybody reads.
* What was made for a commit that never came is left behind by those who died: workers, tasks of a merge, writers of
  ranges. It goes when it is that old, and a week at least: whoever meant to commit it is long gone by then. It must
  bear a name that pgetl gives, no commit may name it, and no copy attempt that is under way may have written it.
* delta-rs knows nothing of the files of deletion vectors, and lists those in use among what no commit names. They go
  by what the log says: when no file has had one of their vectors for that long.

A log forgets a tombstone after a week, or what `delta.deletedFileRetentionDuration` says; then what was let go of looks
like what was never committed. So that it is not removed too early, tombstones are to be remembered for as long as files
are kept: where they are not, the table's property is raised first, and such files wait.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from urllib.parse import unquote

from deltalake.exceptions import DeltaError

from airflow_provider_pgetl.engine.destinations.delta.actions import VectorReference, now
from airflow_provider_pgetl.engine.destinations.delta.deletion_vectors import vector_path
from airflow_provider_pgetl.engine.destinations.delta.log import Conflict, TableLog, Words
from airflow_provider_pgetl.engine.destinations.delta.snapshot import vectors_named
from airflow_provider_pgetl.engine.destinations.delta.staged_files import StagedFiles
from airflow_provider_pgetl.engine.destinations.delta.storage import Place, storage_error

log = logging.getLogger(__name__)

_EVERY_SECONDS = 3600.0
_WEEK = 7 * 24
_REMEMBERED = "delta.deletedFileRetentionDuration"
_INTERVAL = re.compile(r"interval (\d+) (hour|day|week)s?")
_HOURS = {"hour": 1, "day": 24, "week": _WEEK}
_VECTORS = re.compile(r"deletion_vector_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.bin")
# Also of a file that somebody died while writing, on a local path.
_MADE = re.compile(r"part-[0-9a-f]{32}\.parquet(?:\.[0-9a-f]{8}\.writing)?")


def remembering(retention: float | None) -> dict[str, str]:
    """The property by which a table remembers its tombstones for as long as files are kept."""
    hours = 0 if retention is None else _hours(retention)
    return {_REMEMBERED: f"interval {hours} hours"} if hours > _WEEK else {}


def _hours(retention: float) -> int:
    return -(-int(retention) // 3600)


class Vacuum:
    """Remembers when each table was vacuumed."""

    def __init__(self, retention: float) -> None:
        self._hours = _hours(retention)
        self._due: dict[str, float] = {}

    def run(self, table: TableLog) -> None:
        """At most once an hour."""
        now = time.monotonic()
        if self._due.setdefault(table.place.uri, now) > now:
            return
        self._due[table.place.uri] = now + _EVERY_SECONDS
        gone = [*self._sweep(table), *_listed(table, self._hours, dry_run=False)]
        table.refresh()
        log.info("%d files of %s were removed", len(gone), table.place.uri)

    def _sweep(self, table: TableLog) -> list[str]:
        """Copies that are under way are looked for first: one that is published since is in the log that is loaded."""
        staged = StagedFiles(table)
        under_way = {None, *staged.attempts()}
        table.refresh()
        if table.is_impaired or not self._remembers(table):
            return []
        unnamed = _listed(table, max(self._hours, _WEEK), dry_run=True, full=True)
        since = now() - 3_600_000 * max(self._hours, _WEEK)
        vectors = _files_of(table.place, vectors_named(table.place, table.version, since))
        left = [path for path in unnamed if _is_left(path, vectors) or staged.attempt_of(path) not in under_way]
        for path in left:
            table.place.delete(path)
        return left

    def _remembers(self, table: TableLog) -> bool:
        """Whether tombstones stay for as long as files do. If not, they will from now on."""
        said = table.table.metadata().configuration.get(_REMEMBERED, f"interval {_WEEK} hours")
        match = _INTERVAL.fullmatch(said)
        if match is None:
            return False
        if int(match[1]) * _HOURS[match[2]] >= self._hours:
            return True
        try:
            table.describe(Words(properties={_REMEMBERED: f"interval {self._hours} hours"}), table.standing())
        except Conflict as conflict:
            log.info("Tombstones of %s are to be remembered next time: %s", table.place.uri, conflict)
        return False


def _is_left(path: str, vectors: Collection[str]) -> bool:
    """Whether the file is one that pgetl made and nobody has, where those of deletion vectors are known."""
    if _VECTORS.fullmatch(path):
        return path not in vectors
    return _MADE.fullmatch(path) is not None


def _files_of(place: Place, vectors: Iterable[VectorReference]) -> set[str]:
    """By their names alone, which are like no other's, wherever an address leads to. Of a vector of which nobody can
    tell, there is no file to keep."""
    found = set()
    for vector in vectors:
        with suppress(ValueError, KeyError):
            address = vector.path_or_inline if vector.storage == "p" else vector_path(place, vector)
            found.add(unquote(address).rpartition("/")[2])
    return found


def _listed(table: TableLog, hours: int, *, dry_run: bool, full: bool = False) -> list[str]:
    """What delta-rs would remove, or does remove: `full`, also what no commit names and was written that long ago."""
    try:
        return table.table.vacuum(hours, dry_run=dry_run, enforce_retention_duration=False, full=full)
    except (DeltaError, OSError) as error:
        raise storage_error(table.place.uri, error) from error
