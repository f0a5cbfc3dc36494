"""Maintenance of a table: staged files of copies, vacuum of unused files, compaction of small files.

The vacuum deletes files that are not needed any more, once they are older than `vacuum_retention`.

* Files that a commit has removed from the table are deleted when their tombstones are that old, which must be longer
  than any read takes.
* Files made for a commit that never came are left behind by processes that were killed: workers, tasks of a merge,
  writers of ranges. They are deleted when they are that old, and at least a week old: by then the process that meant
  to commit them has ended. Such a file must have a name that pgetl gives or lie in the folder of a copy attempt, no
  commit may name it, and no copy attempt that is under way may have written it.
* delta-rs ignores the files of deletion vectors, and lists those in use among the files that no commit names. For them
  the log decides: they are deleted when no file has had one of their vectors for that long.

A log drops a tombstone after a week, or after `delta.deletedFileRetentionDuration`; the removed file then looks like
one that was never committed. To prevent its deletion too early, tombstones must be kept for as long as files are. If
they are not, the table's property is raised first, and files that no commit names are not deleted in this run.
"""

from __future__ import annotations

import json
import logging
import re
import time
import uuid
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
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
# Staged files: what copy attempts have written before their publication, and the notes that list the complete ranges.

_NOTES = "_pgetl"
_NOTE = re.compile(r"(\d+)-[0-9a-f]+\.json")


@dataclass(frozen=True, slots=True)
class Note:
    """Records that a range is complete: its files and its number of rows."""

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
    """The staged files of all copy attempts of one pipeline for one table."""

    def __init__(self, log: TableLog) -> None:
        self._log = log
        self._place = log.place
        self._name = f"copy-{safe(log.pipeline)}-"
        folder = rf"{re.escape(self._name)}(\d+)/"
        self._staged = re.compile(f"{_NOTES}/{folder}")
        self._written = re.compile(folder)

    def folder(self, attempt: int) -> str:
        """Returns the folder of the attempt's files. It differs from those of other pipelines that copy to the same
        table."""
        return f"{self._name}{attempt}"

    def _notes(self, attempt: int) -> str:
        return f"{_NOTES}/{self.folder(attempt)}"

    def attempts(self) -> list[int]:
        """Returns the attempts that have a begin marker or notes."""
        return sorted({int(match[1]) for path in self._place.list(_NOTES) if (match := self._staged.match(path))})

    def attempt_of(self, path: str) -> int | None:
        """Returns the attempt in whose folder the file lies; None if it lies in no such folder."""
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
        """Returns one note for each range."""
        by_number: dict[int, Note] = {}
        for note in self.notes(attempt):
            by_number.setdefault(note.number, note)
        return list(by_number.values())

    def remove(self, attempt: int, *, published: bool) -> None:
        """Deletes what the attempt wrote; keeps its files if it was published, or if the table has any of them."""
        if published or self._is_referenced(attempt):
            self.settle(attempt)
            return
        self._place.delete_all(self.folder(attempt))
        self._place.delete_all(self._notes(attempt))

    def remove_all(self) -> None:
        """Removes all attempts, none of which will be resumed."""
        self._log.refresh()
        record = self._log.log_state().record
        for attempt in self.attempts():
            self.remove(attempt, published=record is not None and record.published == attempt)

    def settle(self, attempt: int) -> None:
        """Deletes, after the attempt's publication, the files that were not published, and then the notes."""
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
# Also matches a file whose writer was killed while writing it, on a local path.
_MADE = re.compile(r"part-[0-9a-f]{32}\.parquet(?:\.[0-9a-f]{8}\.writing)?")


class Vacuum:
    """Vacuums tables, and remembers when each of them is due again."""

    def __init__(self, retention: float) -> None:
        self._hours = whole_hours(retention)
        self._due: dict[str, float] = {}

    def run(self, table: TableLog) -> None:
        """Vacuums the table, at most once an hour."""
        now = time.monotonic()
        if self._due.setdefault(table.place.uri, now) > now:
            return
        self._due[table.place.uri] = now + _EVERY_SECONDS
        gone = [*self._clean_up(table), *_listed(table, self._hours, dry_run=False)]
        table.refresh()
        log.info("%d files of %s were removed", len(gone), table.place.uri)

    def _clean_up(self, table: TableLog) -> list[str]:
        """Deletes files that were never committed; returns their paths. Copy attempts under way are listed before the
        log is loaded, so that the log has the files of a copy that is published in between."""
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
        """Whether the log keeps tombstones for as long as files are kept. If not, sets the table's property so."""
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
    """Whether an uncommitted file was left by pgetl. `vectors` are the files of deletion vectors that are in use."""
    if _VECTORS.fullmatch(path):
        return path not in vectors
    return _MADE.fullmatch(path) is not None


def _files_of(place: TableFolder, vectors: Iterable[VectorReference]) -> set[str]:
    """Returns the names of the files that hold these vectors, without their folders: the names are unique, wherever an
    address leads to. A vector whose address cannot be understood has no file to keep."""
    found = set()
    for vector in vectors:
        with suppress(ValueError, KeyError):
            address = vector.path_or_inline if vector.storage == "p" else vector_path(place, vector)
            found.add(unquote(address).rpartition("/")[2])
    return found


def _listed(table: TableLog, hours: int, *, dry_run: bool, full: bool = False) -> list[str]:
    """Returns the files that delta-rs would remove, or removes without `dry_run`. `full`: also files that no commit
    names and that were written that long ago."""
    try:
        return table.table.vacuum(hours, dry_run=dry_run, enforce_retention_duration=False, full=full)
    except (DeltaError, OSError) as error:
        raise storage_error(table.place.uri, error) from error


# -- Compaction: between batches, many small files are rewritten into few. ---------------------------------------------
#
# Every batch adds files, and small batches add small files; a table of thousands of files is slow to read and to merge
# into. So when a table has enough small files, the smallest are written together, in one commit that changes no row and
# repeats the record unchanged. The commit is based on the snapshot that the previous batch has left. So a worker that
# was fenced off meanwhile conflicts with its successor, and cannot compact either. The new files grow by tiers: each
# row is rewritten a few times until its file has the target size, not with every compaction.
#
# Compaction also folds deletion vectors into the files: files that are written together lose their deleted rows. If
# there are no small files to write, the file with the largest share of deleted rows is rewritten, if that share is at
# least a fifth.
#
# A round is short, so that the next batch does not wait long: it reads `ROUND_BYTES`, or as much as makes one file of
# the target size if that is more. The rest is left for later rounds. A single file that is larger than that, as other
# writers may have made, is rewritten only once half of its rows are deleted. A table's rounds take at most a fifth of
# the time: a round that would take more waits, so that a worker with a backlog spends its time on the backlog. Without
# this limit, the first changes after a copy would wait until all files of the copy are rewritten.
#
# Checkpoints are made by delta-rs in the course of commits, as the table's properties say. What is deleted, and when,
# is described at the top of this module.

SMALL_FILES = 12
_TIER = 4
ROUND_BYTES = 512 << 20
_MOST_FILES = 1000
_WORN_SHARE, _LARGE_WORN_SHARE = 0.2, 0.5
_SMALLEST = 1 << 20
_SHARE_OF_TIME = 0.2
_BRIEF_SECONDS = 0.25
_BYTES_PER_SECOND = 32 << 20
"""What a round reads in a second, about, on one processor."""


class Compaction:
    """Compacts tables, and remembers when the last round of each ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, bytes_per_second: int = _BYTES_PER_SECOND) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._since: dict[str, float] = {}

    def run(self, table: TableLog, shape: DeltaShape) -> bool:
        """Runs a round on the loaded snapshot if one is due; returns whether it changed anything."""
        since = self._since.setdefault(table.place.uri, self._clock())
        picked = chosen(table.files(), shape.options.target_file_bytes)
        if not picked or not self._affordable(picked, self._clock() - since):
            return False
        try:
            return compact(table, shape, picked)
        finally:
            self._since[table.place.uri] = self._clock()

    def _affordable(self, files: Sequence[LiveFile], elapsed: float) -> bool:
        """Whether a round on these files takes at most its share of the time since the last one, or hardly any."""
        seconds = sum(file.size for file in files) / self._bytes_per_second
        return seconds <= max(_BRIEF_SECONDS, elapsed * _SHARE_OF_TIME / (1 - _SHARE_OF_TIME))


def chosen(files: list[LiveFile], target: int) -> list[LiveFile]:
    """Returns the files to write together: those of the lowest tier that has enough files, and of the tiers below it.
    The files of a tier are up to four times as large as those of the tier below; those of the lowest tier have up to a
    megabyte. Files of half the target size and more are left alone."""
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
    """Returns the first files, of at most `most` bytes together. Any two files are smaller than the target size."""
    sizes = list(accumulate(file.size for file in files[:_MOST_FILES]))
    return files[: bisect_right(sizes, most)]


def worn(files: list[LiveFile], most: int) -> list[LiveFile]:
    """Returns the file with the largest share of deleted rows, if that share is large enough: one file in each round.
    `most`: how many bytes a round reads."""
    shares = [(file.deleted / file.rows, file) for file in files if file.deleted and file.rows]
    due = [one for one in shares if one[0] >= (_WORN_SHARE if one[1].size <= most else _LARGE_WORN_SHARE)]
    return [max(due, key=lambda one: one[0])[1]] if due else []


def _tier(size: int) -> int:
    tier, limit = 0, _SMALLEST
    while size > limit:
        tier, limit = tier + 1, limit * _TIER
    return tier


def compact(table: TableLog, shape: DeltaShape, picked: Sequence[LiveFile]) -> bool:
    """Writes these files of the loaded snapshot together; returns whether that changed anything. If another writer
    commits in between, the round is discarded, and compaction waits for the next call."""
    files = WorkingSet(table.place, shape.layout_in(table), picked)
    files.compact()
    try:
        table.commit(files.actions(data_change=False), table.log_state())
    except Conflict as conflict:
        files.discard()
        log.info("The compaction of %s was in vain: %s", written(shape.table), conflict)
        return False
    return True
