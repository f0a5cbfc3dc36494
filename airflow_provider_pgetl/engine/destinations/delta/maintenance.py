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

import json
import logging
import re
import time
import uuid
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from urllib.parse import unquote

from deltalake.exceptions import DeltaError

from airflow_provider_pgetl.engine.destinations.delta.files.data_files import WrittenFile
from airflow_provider_pgetl.engine.destinations.delta.files.deletion_vectors import vector_path
from airflow_provider_pgetl.engine.destinations.delta.log.actions import VectorReference, now
from airflow_provider_pgetl.engine.destinations.delta.log.snapshot import LiveFile, vectors_named
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder, safe, storage_error
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import Conflict, TableLog, Words
from airflow_provider_pgetl.engine.destinations.delta.merge.working_set import WorkingSet
from airflow_provider_pgetl.engine.destinations.delta.shape import (
    RETENTION_PROPERTY,
    WEEK_HOURS,
    DeltaShape,
    whole_hours,
)
from airflow_provider_pgetl.engine.model.tables import written

# ----------------------------------------------------------------------------------------------------------------------
# What copy attempts have written for a table, before it is the table's: files, and the notes that make them count.

_NOTES = "_pgetl"
_NOTE = re.compile(r"(\d+)-[0-9a-f]+\.json")


@dataclass(frozen=True, slots=True)
class Note:
    """One range that is whole."""

    path: str
    number: int
    rows: int
    files: tuple[WrittenFile, ...]

    @classmethod
    def read(cls, place: TableFolder, path: str) -> Note:
        data = json.loads(place.read(path))
        return cls(path, data["number"], data["rows"], tuple(WrittenFile(**one) for one in data["files"]))

    def write(self, place: TableFolder) -> None:
        data = {"number": self.number, "rows": self.rows, "files": [one.as_json() for one in self.files]}
        place.write(self.path, json.dumps(data).encode())


class StagedFiles:
    """Of one table, all attempts of one pipeline."""

    def __init__(self, log: TableLog) -> None:
        self._log = log
        self._place = log.place
        self._name = f"copy-{safe(log.pipeline)}-"
        folder = rf"{re.escape(self._name)}(\d+)/"
        self._staged = re.compile(f"{_NOTES}/{folder}")
        self._written = re.compile(folder)

    def folder(self, attempt: int) -> str:
        """Where the attempt's files are. No other pipeline's attempt has it, should one copy to the same place."""
        return f"{self._name}{attempt}"

    def _notes(self, attempt: int) -> str:
        return f"{_NOTES}/{self.folder(attempt)}"

    def attempts(self) -> list[int]:
        """Those of which there is anything."""
        return sorted({int(match[1]) for path in self._place.list(_NOTES) if (match := self._staged.match(path))})

    def attempt_of(self, path: str) -> int | None:
        """Which attempt's folder the file is in; None of a file in no such folder."""
        match = self._written.match(path)
        return int(match[1]) if match else None

    def begin(self, attempt: int) -> None:
        self._place.write(self._begun(attempt), b"")

    def has_begun(self, attempt: int) -> bool:
        return self._begun(attempt) in self._place.list(self._notes(attempt))

    def add(self, attempt: int, number: int, rows: int, files: Sequence[WrittenFile]) -> None:
        path = f"{self._notes(attempt)}/{number:06d}-{uuid.uuid4().hex}.json"
        Note(path, number, rows, tuple(files)).write(self._place)

    def notes(self, attempt: int, number: int | None = None) -> Iterator[Note]:
        for path in self._place.list(self._notes(attempt)):
            match = _NOTE.fullmatch(path.rpartition("/")[2])
            if match and number in (None, int(match[1])):
                yield Note.read(self._place, path)

    def chosen(self, attempt: int) -> list[Note]:
        """One note for each range."""
        by_number: dict[int, Note] = {}
        for note in self.notes(attempt):
            by_number.setdefault(note.number, note)
        return list(by_number.values())

    def remove(self, attempt: int, *, published: bool) -> None:
        """Take away what the attempt wrote, unless it is, or has been, the table's."""
        if published or self._is_referenced(attempt):
            self.settle(attempt)
            return
        self._place.delete_all(self.folder(attempt))
        self._place.delete_all(self._notes(attempt))

    def remove_all(self) -> None:
        """Nobody will come back for any attempt."""
        self._log.refresh()
        record = self._log.log_state().record
        for attempt in self.attempts():
            self.remove(attempt, published=record is not None and record.published == attempt)

    def settle(self, attempt: int) -> None:
        """The attempt is published: what publication did not take goes, and then the notes."""
        notes = list(self.notes(attempt))
        chosen = {one.path for note in self.chosen(attempt) for one in note.files}
        for path in {one.path for note in notes for one in note.files} - chosen:
            self._place.delete(path)
        self._place.delete_all(self._notes(attempt))

    def _is_referenced(self, attempt: int) -> bool:
        return self._log.exists and any(one.path.startswith(f"{self.folder(attempt)}/") for one in self._log.files())

    def _begun(self, attempt: int) -> str:
        return f"{self._notes(attempt)}/begun"


# -- Maintenance. ------------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

_EVERY_SECONDS = 3600.0
_INTERVAL = re.compile(r"interval (\d+) (hour|day|week)s?")
_HOURS = {"hour": 1, "day": 24, "week": WEEK_HOURS}
_VECTORS = re.compile(r"deletion_vector_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.bin")
# Also of a file that somebody died while writing, on a local path.
_MADE = re.compile(r"part-[0-9a-f]{32}\.parquet(?:\.[0-9a-f]{8}\.writing)?")


class Vacuum:
    """Remembers when each table was vacuumed."""

    def __init__(self, retention: float) -> None:
        self._hours = whole_hours(retention)
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
        unnamed = _listed(table, max(self._hours, WEEK_HOURS), dry_run=True, full=True)
        since = now() - 3_600_000 * max(self._hours, WEEK_HOURS)
        vectors = _files_of(table.place, vectors_named(table.place, table.version, since))
        left = [path for path in unnamed if _is_left(path, vectors) or staged.attempt_of(path) not in under_way]
        for path in left:
            table.place.delete(path)
        return left

    def _remembers(self, table: TableLog) -> bool:
        """Whether tombstones stay for as long as files do. If not, they will from now on."""
        said = table.table.metadata().configuration.get(RETENTION_PROPERTY, f"interval {WEEK_HOURS} hours")
        match = _INTERVAL.fullmatch(said)
        if match is None:
            return False
        if int(match[1]) * _HOURS[match[2]] >= self._hours:
            return True
        try:
            table.describe(Words(properties={RETENTION_PROPERTY: f"interval {self._hours} hours"}), table.log_state())
        except Conflict as conflict:
            log.info("Tombstones of %s are to be remembered next time: %s", table.place.uri, conflict)
        return False


def _is_left(path: str, vectors: Collection[str]) -> bool:
    """Whether the file is one that pgetl made and nobody has, where those of deletion vectors are known."""
    if _VECTORS.fullmatch(path):
        return path not in vectors
    return _MADE.fullmatch(path) is not None


def _files_of(place: TableFolder, vectors: Iterable[VectorReference]) -> set[str]:
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


# -- Keeping tables fit between batches: many small files become few. --------------------------------------------------
#
# Every batch adds files, and small batches small ones; a table of thousands of them is slow to read and to merge into.
# So when a table has gathered enough small files, the smallest are written together, in one commit that changes no row
# and carries the record on as it is. It stands on the snapshot that the batch before has left: so a worker that was
# fenced off since collides with its successor, and cannot compact either. Files made so grow by tiers: each row is
# rewritten a few times on its way to the target size, not with every compaction.
#
# Deletion vectors are folded in by the same means: whatever is written together loses its deleted rows, and when no
# small files are to be written, the file with the largest share of deleted rows is written anew, if that is a fifth at
# least.
#
# A round is short, so that the batch behind it does not wait long: it reads `ROUND_BYTES`, or what becomes one file of
# the target size if that is more. What is left over is for later rounds. A single file that is larger, as others may
# have written, is only written anew once half of its rows are deleted.
#
# Checkpoints are made by delta-rs in the course of commits, as the table's properties say. What is removed, and when,
# is `maintenance`'s affair.

SMALL_FILES = 12
_TIER = 4
ROUND_BYTES = 512 << 20
_MOST_FILES = 1000
_WORN_SHARE, _LARGE_WORN_SHARE = 0.2, 0.5
_SMALLEST = 1 << 20


def chosen(files: list[LiveFile], target: int) -> list[LiveFile]:
    """The files to write together: those of the lowest tier that has enough of them, and of those below it. A tier's
    files are up to four times as large as the next one's; the lowest are up to a megabyte. Files near the target are
    left alone."""
    tiers: dict[int, list[LiveFile]] = {}
    for file in files:
        if file.size < target // 2:
            tiers.setdefault(_tier(file.size), []).append(file)
    below: list[LiveFile] = []
    for number in sorted(tiers):
        below += sorted(tiers[number], key=lambda file: file.modified)
        if len(tiers[number]) >= SMALL_FILES:
            return _bounded(below, max(ROUND_BYTES, target))
    return worn(files, max(ROUND_BYTES, target))


def _bounded(files: list[LiveFile], most: int) -> list[LiveFile]:
    """The first ones, of as many bytes; two of them are below the target."""
    sizes = list(accumulate(file.size for file in files[:_MOST_FILES]))
    return files[: bisect_right(sizes, most)]


def worn(files: list[LiveFile], most: int) -> list[LiveFile]:
    """The file of which the largest share of rows is deleted, if that is large: one in each round. `most`: how many
    bytes a round reads."""
    shares = [(file.deleted / file.rows, file) for file in files if file.deleted and file.rows]
    due = [one for one in shares if one[0] >= (_WORN_SHARE if one[1].size <= most else _LARGE_WORN_SHARE)]
    return [max(due, key=lambda one: one[0])[1]] if due else []


def _tier(size: int) -> int:
    tier, limit = 0, _SMALLEST
    while size > limit:
        tier, limit = tier + 1, limit * _TIER
    return tier


def compact(table: TableLog, shape: DeltaShape) -> bool:
    """One round, of the snapshot as it is loaded; whether there was anything to do. Somebody else's commit in between
    leaves it for the next time."""
    picked = chosen(table.files(), shape.options.target_file_bytes)
    if not picked:
        return False
    files = WorkingSet(table.place, shape.layout_in(table), picked)
    files.compact()
    try:
        table.commit(files.actions(data_change=False), table.log_state())
    except Conflict as conflict:
        files.discard()
        log.info("The compaction of %s was in vain: %s", written(shape.table), conflict)
        return False
    return True
