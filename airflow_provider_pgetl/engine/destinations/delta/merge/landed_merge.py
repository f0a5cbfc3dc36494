"""Merges landed batches into the table, in slices of whole batches; each slice is one commit.

    pending batches ──parts──▶ nets ──▶ new files of the table ──commit, position──▶ next slice … ──▶ clear the landing

A slice has as many batches as amount to `SLICE_BYTES` of net changes, and at least one. So memory is bounded, and the
merge of a long landing makes durable progress. A batch larger than that is merged in pieces, and committed as a whole.

A commit is made on the snapshot that was merged into. If others have committed meanwhile, but neither the table's files
nor its position have changed, the files made are still valid, and the commit is repeated. Otherwise they are discarded,
and the slice begins again on the new state of the table, which shows whether another merger has merged the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.delta import metadata
from airflow_provider_pgetl.engine.destinations.delta.files.data_files import Layout, WrittenFile
from airflow_provider_pgetl.engine.destinations.delta.files.keys import Lookup
from airflow_provider_pgetl.engine.destinations.delta.log.actions import Action
from airflow_provider_pgetl.engine.destinations.delta.log.snapshot import LiveFile
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import Conflict, TableLog
from airflow_provider_pgetl.engine.destinations.delta.log.transactions import LogState
from airflow_provider_pgetl.engine.destinations.delta.merge.file_merge import Changes, Nets
from airflow_provider_pgetl.engine.destinations.delta.merge.landing import Landing, Pending
from airflow_provider_pgetl.engine.destinations.delta.merge.net_changes import (
    Bag,
    NetFile,
    Part,
    Truncated,
    read_part,
    read_within,
    write_sorted,
)
from airflow_provider_pgetl.engine.destinations.delta.merge.working_set import File, NewFile, WorkingSet
from airflow_provider_pgetl.engine.destinations.delta.metadata import Begun
from airflow_provider_pgetl.engine.destinations.delta.shape import DeltaShape
from airflow_provider_pgetl.engine.destinations.protocol import Answer, Item, Merged, Misses, Spread
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableSchema
from airflow_provider_pgetl.engine.runtime.processes import reach

# -- Merging in tasks, in other processes: each file that the changes may touch is one task. ---------------------------
#
# The unit of work, *merge these changes into this file*, is the same as in the worker's own merge: a `WorkingSet` of
# one file. The arguments of `merge_into_file` have all that a task needs. The changes lie in a file of the landing's
# folder, of which a task reads those that the bounds of its file admit. It leaves new files in the table's folder,
# which are not visible yet. A task may run twice, also at the same time: each run gives its files new names, and only
# the files that a run returns can become part of the table. The others are left to the vacuum.
#
# Truncates and new rows need no task. A keyless table is merged in the process that drives the merge: of equal rows in
# many files, only as many as requested may be deleted, which must be counted from file to file.


@dataclass(frozen=True, slots=True)
class MergeTask:
    """What the tasks of one merge have in common. The folders contain the credentials of the store."""

    changes_at: TableFolder
    changes: str
    table: TableFolder
    layout: Layout


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """`made` are the files that replace the file; None if no change concerned it. `found` counts the changes that
    matched a row of the file."""

    made: tuple[WrittenFile, ...] | None
    found: Misses


def merge_into_file(task: MergeTask, file: LiveFile) -> FileOutcome:
    """Merges the changes of a task into one file. May run again, also at the same time."""
    bounds = file.bounds([task.layout.schema.field(name) for name in task.layout.key])
    changes = read_within(task.changes_at, task.changes, bounds)
    files = _OneFile(task.table, task.layout, [file])
    try:
        missed = files.merge(changes)
        return files.outcome(Misses(changes.rows.num_rows - missed.updates, changes.deletes.num_rows - missed.deletes))
    except BaseException:
        files.discard()
        raise


def one_by_one(function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer | PgetlError]:
    """Calls the function for each item in this thread (a `Spread`)."""
    return [_answer(function, item) for item in items]


def _answer(function: Callable[[Item], Answer], item: Item) -> Answer | PgetlError:
    try:
        return function(item)
    except PgetlError as error:
        return error


class _OneFile(WorkingSet):
    def outcome(self, found: Misses) -> FileOutcome:
        made = tuple(one.made for one in self._files if isinstance(one, NewFile))
        return FileOutcome(made if len(made) == len(self._files) else None, found)


class SpreadSet(WorkingSet):
    """A working set that merges each file in a task. `aside`: the folder for the changes while tasks read them, and a
    function that returns a new path in it."""

    def __init__(
        self,
        place: TableFolder,
        schema: TableSchema,
        layout: Layout,
        snapshot: Iterable[LiveFile],
        spread: Spread,
        aside: tuple[TableFolder, Callable[[], str]],
    ) -> None:
        super().__init__(place, layout, snapshot)
        self._schema = schema
        self._spread = spread
        self._aside, self._new_path = aside

    def merge(self, changes: Changes) -> Misses:
        asked = Misses(changes.rows.num_rows, changes.deletes.num_rows)
        outcomes = self._scattered(replace(changes, inserts=changes.inserts.slice(0, 0)))
        self.append([changes.inserts])
        updates = asked.updates - sum(outcome.found.updates for outcome in outcomes)
        return Misses(updates, asked.deletes - sum(outcome.found.deletes for outcome in outcomes))

    def _scattered(self, changes: Changes) -> list[FileOutcome]:
        """Merges the changes into all files that they may touch, each in a task. Files that were changed are replaced.

        Returns the outcomes of the tasks."""
        if not changes:
            return []
        lookup = Lookup(changes.keys)
        touched = [file for file in self._files if lookup.within(file.bounds(list(changes.keys.schema))) is not None]
        if not touched:
            return []
        path = self._new_path()
        write_sorted(self._aside, path, self._schema, changes)
        try:
            task = MergeTask(replace(self._aside), path, replace(self._place), self._layout)
            answers = self._spread(partial(merge_into_file, task), [file.live for file in touched])
        finally:
            self._aside.delete(path)
        return self._taken_over(touched, answers)

    def _taken_over(self, files: Sequence[File], answers: Sequence[FileOutcome | PgetlError]) -> list[FileOutcome]:
        """Takes over all new files before it raises the first failure, so that they are discarded with the others."""
        for file, answer in zip(files, answers, strict=True):
            if isinstance(answer, FileOutcome) and answer.made is not None:
                self._replace([file], answer.made)
        failed = [answer for answer in answers if isinstance(answer, PgetlError)]
        if failed:
            raise failed[0]
        return [answer for answer in answers if isinstance(answer, FileOutcome)]


# -- Landed merge. -----------------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)

SLICE_BYTES = 96 << 20
_PATIENCE = 10


class LandedMerge:
    """The merge of one table's landing. `misses` counts the changes that matched no row; `shape` is the table's shape,
    once anything was merged."""

    def __init__(self, landing: Landing, shape_of: Callable[[TableSchema], DeltaShape], spread: Spread) -> None:
        self._landing = landing
        self._table = landing.table
        self._shape_of = shape_of
        self._spread = spread
        self.misses = Misses()
        self.shape: DeltaShape | None = None

    def run(self, stopped: Callable[[], bool]) -> Merged:
        """Merges until nothing is pending, or until `stopped`, which is called before each slice, returns true."""
        batches = conflicts = 0
        while not stopped() and (pending := self._pending()):
            taken = self._merge_slice(pending)
            batches, conflicts = batches + taken, 0 if taken else conflicts + 1
            if conflicts == _PATIENCE:
                message = f"Others commit to {self._table.place.uri} without end."
                raise PgetlError(ErrorKind.CONNECTION, message)
        self._landing.clear()
        reach("merge.cleared")
        return Merged(batches, self._landing.merged())

    def _pending(self) -> list[Pending]:
        self._landing.refresh()
        return self._landing.pending()

    def _merge_slice(self, pending: Sequence[Pending]) -> int:
        """Merges one slice. Returns how many batches were committed; 0 if another writer committed first."""
        before = self._table.log_state()
        if before.record is None:  # others have removed it since `_pending`
            return 0
        try:
            with self._conflict_if_changed(before):
                slice_ = self._begin(pending[0], before.record)
                taken = slice_.take(pending)
            reach("merge.files_written")
            slice_.commit(before.record, before.epoch, pending[taken - 1].to)
        except Conflict as conflict:
            log.info("The merge into %s begins anew: %s", self._table.place.uri, conflict)
            return 0
        reach("merge.committed")
        self.misses += slice_.misses
        return taken

    def _begin(self, first: Pending, record: fencing.TableMetadata) -> _Slice:
        schema = _read_landed(self._landing.place, first.parts[0]).schema
        self.shape = shape = self._shape_of(schema)
        error = metadata.lost(self._table, Begun(record.generation, record.attempt), schema.table)
        if error is not None:
            raise error
        aside = self._landing.place, lambda: self._landing.new_path(record.published, first.to)
        layout = shape.layout_in(self._table)
        files = SpreadSet(self._table.place, schema, layout, self._table.files(), self._spread, aside)
        return _Slice(self._landing, shape, files)

    @contextmanager
    def _conflict_if_changed(self, before: LogState) -> Iterator[None]:
        """Turns an error into a `Conflict` if the table has changed: a file may be missing because another merge or a
        copy has removed it."""
        try:
            yield
        except PgetlError as error:
            self._landing.refresh()
            if _same_rows(self._table.log_state(), before):
                raise
            raise Conflict(error.message) from error


class _Slice:
    """The batches that are merged into the table by one commit. Nothing of it remains if it fails before the commit."""

    def __init__(self, landing: Landing, shape: DeltaShape, files: SpreadSet) -> None:
        self._place = landing.place
        self._table: TableLog = landing.table
        self._shape = shape
        self._files = files
        self._nets = Nets(self._merge, SLICE_BYTES)
        self.misses = Misses()
        self._is_full = False

    def take(self, pending: Sequence[Pending]) -> int:
        """Merges batches until the slice is full; returns how many were merged."""
        try:
            taken = 0
            for batch in pending:
                if self._is_full or not self._take_batch(batch):
                    break
                taken += 1
            self._nets.settle()
        except BaseException:
            self._files.discard()
            raise
        return taken

    def _take_batch(self, batch: Pending) -> bool:
        """Returns False if the batch has another schema than those before it."""
        for path in batch.parts:
            found = _read_landed(self._place, path)
            if found.schema != self._shape.schema:
                return False
            self._take(found.part)
        return True

    def _take(self, part: Part) -> None:
        match part:
            case Truncated():
                self._nets.drop()
                self._files.truncate()
            case Bag(deletes, inserts):
                self.misses += self._files.merge_bag(deletes, inserts)
            case Changes():
                self._nets.add(part)

    def _merge(self, net: Changes) -> None:
        self._is_full = True
        self.misses += self._files.merge(net)

    def commit(self, record: fencing.TableMetadata, epoch: int, to: Boundary) -> None:
        """Commits the slice on what the table's log records. If it is unknown whether the commit was written, the files
        stay."""
        paths = self._paths()
        actions = self._actions()
        for _ in range(_PATIENCE):
            try:
                self._table.commit(actions, LogState(replace(record, position=to), epoch))
                return
            except Conflict:
                self._table.refresh()
                after = self._table.log_state()
                kept = self._table.held and self._paths() == paths
                if after.record is None or _rows(after.record) != _rows(record) or not kept:
                    self._files.discard()
                    raise
                record, epoch = after.record, after.epoch
        self._files.discard()
        raise Conflict("Others commit without end.")

    def _actions(self) -> list[Action]:
        try:
            return self._files.actions()
        except Conflict:
            self._files.discard()
            raise

    def _paths(self) -> set[str]:
        return {one.path for one in self._table.files()}


def _read_landed(place: TableFolder, path: str) -> NetFile:
    """Reads a landed part. A missing file is an error of the table, unless the landing's log is missing as well: then
    the store is unavailable, and nothing is lost."""
    try:
        return read_part(place, path)
    except PgetlError as error:
        if not isinstance(error.__cause__, FileNotFoundError) or not place.list("_delta_log"):
            raise
        message = f"{path} at {place.uri}, which has landed and is not merged, is not there any more."
        raise PgetlError(ErrorKind.DAMAGED, message) from error


def _same_rows(one: LogState, other: LogState) -> bool:
    """Whether both states have the same copy and position, regardless of epoch and generation."""
    return _rows(one.record) == _rows(other.record)


def _rows(record: fencing.TableMetadata | None) -> tuple[int, Boundary | None] | None:
    return None if record is None else (record.published, record.position)
