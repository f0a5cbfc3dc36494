"""The files of a table while a batch is merged into it: those of the snapshot that were not replaced, and new ones.

New files are invisible to readers until `actions` are committed. New files that are replaced again are deleted at once;
if the batch fails, `discard` deletes the others.

A vacuum of another program cannot see that the new files are needed, and deletes them if it keeps files for a shorter
time than the batch takes. So before a batch that has taken long is committed, its files are checked for existence.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from airflow_provider_pgetl.engine.destinations.delta.files.data_files import (
    BATCH_BYTES,
    FileReader,
    FilesWriter,
    Layout,
    WrittenFile,
    new_name,
)
from airflow_provider_pgetl.engine.destinations.delta.files.deletion_vectors import Marks, read_marks
from airflow_provider_pgetl.engine.destinations.delta.files.keys import Lookup, Run, SortedKeys, clusters, merged_runs
from airflow_provider_pgetl.engine.destinations.delta.log.actions import Action, Add, Bounds
from airflow_provider_pgetl.engine.destinations.delta.log.snapshot import LiveFile
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.destinations.delta.log.table_log import Conflict
from airflow_provider_pgetl.engine.destinations.delta.merge.file_merge import (
    DELETE,
    BagMerge,
    Changes,
    Effect,
    FileMerge,
    narrowed,
)
from airflow_provider_pgetl.engine.destinations.protocol import Misses
from airflow_provider_pgetl.engine.runtime.processes import WORKING, processors, trim

# -- Reads the rows of several files for compaction: without deleted rows, in the order of their keys. -----------------
#
# Files whose bounds do not overlap are read one after the other. Files whose bounds overlap are merged by runs: a file
# that was written in pieces, each of them sorted, has a run of row groups for each piece, and all runs are merged at
# once. The number of open files and runs is limited, and so is what is held of them in memory. If there are more, those
# that begin with the least keys are merged first, and keys then overlap between one merge and the next.

COMPACTION_BYTES = 80 << 20
"""The most that is held: buffers of the files, the heads of the runs, the same in order, and what is being written."""
_BUFFERS_BYTES = _HEADS_BYTES = 16 << 20
_MOST_FILES, _MOST_RUNS = 32, 40


@dataclass(frozen=True, slots=True)
class Input:
    """A file to read. `bounds` are those of the first column of the order, from the log."""

    path: str
    bounds: Bounds | None
    marks: Callable[[], Marks]


@dataclass(frozen=True, slots=True)
class _OpenRun:
    reader: FileReader
    marks: Marks
    run: Run

    def batches(self, size: int) -> Iterator[pa.Table]:
        for _, rows in self.reader.live_batches(self.marks, groups=self.run.groups, size=size):
            yield rows


def together(place: TableFolder, layout: Layout, inputs: Sequence[Input]) -> Iterator[pa.Table]:
    if not layout.order:
        for one in inputs:
            with FileReader(place, one.path, layout.schema) as reader:
                for _, rows in reader.live_batches(one.marks()):
                    yield rows
        return
    for overlapping in clusters(inputs, lambda one: one.bounds):
        for first in range(0, len(overlapping), _MOST_FILES):
            yield from _merged(place, layout, overlapping[first : first + _MOST_FILES])


def _merged(place: TableFolder, layout: Layout, inputs: Sequence[Input]) -> Iterator[pa.Table]:
    with contextlib.ExitStack() as stack:
        runs: list[_OpenRun] = []
        for one in inputs:
            reader = FileReader(place, one.path, layout.schema, buffers=_BUFFERS_BYTES // len(inputs))
            stack.enter_context(reader)
            found = reader.groups.runs(layout.schema.field(layout.order[0]))
            runs += [_OpenRun(reader, one.marks(), run) for run in found]
        for overlapping in clusters(runs, lambda one: one.run.bounds):
            for first in range(0, len(overlapping), _MOST_RUNS):
                some = overlapping[first : first + _MOST_RUNS]
                size = _HEADS_BYTES // len(some)
                yield from merged_runs([one.batches(size) for one in some], layout.order, size)


# -- The files of a table while a batch is merged into it --------------------------------------------------------------

MERGE_BYTES = 5 * BATCH_BYTES
"""The most memory that merging into one file takes: pieces of it as they are read, changed, and written."""
_LONG_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """A file of the snapshot."""

    live: LiveFile

    @property
    def path(self) -> str:
        return self.live.location

    @property
    def rows(self) -> int | None:
        """The number of rows in the file, including deleted ones; None if the log does not have it."""
        return self.live.rows

    def bounds(self, fields: Sequence[pa.Field]) -> tuple[Bounds | None, ...]:
        return self.live.bounds(fields)

    def marks(self, place: TableFolder) -> Marks:
        """Returns the deleted rows of the file."""
        return read_marks(place, self.live.vector)


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that was made for the batch."""

    made: WrittenFile

    @property
    def path(self) -> str:
        return self.made.path

    @property
    def rows(self) -> int | None:
        return self.made.rows

    @property
    def live(self) -> LiveFile:
        """The file in the form that it would have in the log's snapshot."""
        return LiveFile.of(self.made.add())

    def bounds(self, fields: Sequence[pa.Field]) -> tuple[Bounds | None, ...]:
        return tuple(self.made.bounds.get(one.name) for one in fields)

    def marks(self, place: TableFolder) -> Marks:
        return read_marks(place, None)


File = SnapshotFile | NewFile


class WorkingSet:
    def __init__(self, place: TableFolder, layout: Layout, snapshot: Iterable[LiveFile]) -> None:
        self._place = place
        self._layout = layout
        self._snapshot = list(snapshot)
        self._files: list[File] = [*map(SnapshotFile, self._snapshot)]
        self._since = time.monotonic()

    # -- changing

    def truncate(self) -> None:
        self._replace(self._files, [])

    def append(self, tables: Iterable[pa.Table]) -> None:
        self._files += map(NewFile, self._write(map(self._layout.widened, tables), "part", sorts=True))

    def merge(self, changes: Changes) -> Misses:
        """Applies the net changes; returns the number of those that matched no row."""
        changes = changes.widened(self._layout)
        writer = FilesWriter(self._place, self._layout, new_name("part"), sorts=True)
        effect = Effect(np.zeros(len(changes.actions), np.bool_), writer.write)
        try:
            if len(changes.actions):
                self._merge_files(changes, Lookup(changes.keys), effect)
            writer.write(changes.inserts)
            self._files += map(NewFile, writer.close())
        except BaseException:
            writer.abandon()
            raise
        missed = changes.actions[~effect.hit]
        deletes = int((missed == DELETE).sum())
        return Misses(updates=len(missed) - deletes, deletes=deletes)

    def _candidates(self, keys: pa.Table) -> list[File]:
        """Returns the files whose bounds admit one of the keys."""
        if not keys.num_rows:
            return []
        sorted_keys, fields = SortedKeys(keys), list(keys.schema)
        return [one for one in self._files if sorted_keys.any_within(one.bounds(fields))]

    def merge_bag(self, deletes: pa.Table, inserts: pa.Table) -> Misses:
        """Deletes rows of a keyless table, each once, and inserts rows; returns how many deletes matched no row."""
        missed = 0
        if deletes.num_rows:
            merge = BagMerge(deletes)
            for file in list(self._files):
                self._merge_bag_file(file, merge)
            missed = merge.missed
        self.append([inserts])
        return Misses(deletes=missed)

    def _merge_files(self, changes: Changes, lookup: Lookup, effect: Effect) -> None:
        """Merges files in parallel, as many as processors and memory allow. If a file cannot be merged, no other is
        begun, and the files that are done stay in the set."""
        files = self._candidates(changes.keys)
        if len(files) == 1:
            self._merge_only(files[0], changes, lookup, effect)
            return
        with ThreadPoolExecutor(processors(), "pgetl merge") as pool:
            begun = [(one, pool.submit(self._merge_file, one, changes, lookup, effect)) for one in files]
            wait([future for _, future in begun], return_when=FIRST_EXCEPTION)
            pool.shutdown(cancel_futures=True)
        ended = [(one, future) for one, future in begun if not future.cancelled()]
        for file, future in ended:
            made = None if future.exception() else future.result()
            if made is not None:
                self._replace([file], made)
        for _, future in ended:
            future.result()

    def _merge_only(self, file: File, changes: Changes, lookup: Lookup, effect: Effect) -> None:
        made = self._merge_file(file, changes, lookup, effect)
        if made is not None:
            self._replace([file], made)

    def _merge_file(self, file: File, changes: Changes, lookup: Lookup, effect: Effect) -> list[WrittenFile] | None:
        """Returns the files that replace the file; None if no change concerns it."""
        within = lookup.within(file.bounds(list(changes.keys.schema)))
        if within is None:
            return None
        with FileReader(self._place, file.path, self._layout.schema) as reader, WORKING.taken(MERGE_BYTES):
            merge = FileMerge(changes, reader, file.marks(self._place), within, narrowed(lookup, within))
            return self._write(merge.run(effect), "part") if merge.touches else None

    def _merge_bag_file(self, file: File, merge: BagMerge) -> None:
        within = merge.lookup.within(file.bounds(list(merge.lookup.keys.schema)))
        if within is None or not merge.missed:
            return
        with FileReader(self._place, file.path, self._layout.schema) as reader, WORKING.taken(MERGE_BYTES):
            names, marks = merge.lookup.keys.column_names, file.marks(self._place)
            found = [numbers[merge.doomed(rows)] for numbers, rows in reader.live_batches(marks, names)]
            doomed = np.concatenate([np.empty(0, np.int64), *found])
            if len(doomed):
                marks.add(doomed)
                self._replace([file], self._write((rows for _, rows in reader.live_batches(marks)), "part"))

    def rewrite(self, before: pa.Schema, change: Callable[[pa.Table], pa.Table]) -> None:
        """Writes all files anew. `before`: the columns that they have; `change` returns the rows with those that they
        are to have."""
        for file in list(self._files):
            with FileReader(self._place, file.path, before) as reader, WORKING.taken(MERGE_BYTES):
                rows = (change(rows) for _, rows in reader.live_batches(file.marks(self._place)))
                self._replace([file], self._write(rows, "part"))

    def compact(self) -> None:
        """Rewrites the rows of all files into as few files as possible, in the order of their keys."""
        files = list(self._files)
        with WORKING.taken(COMPACTION_BYTES):
            rows = together(self._place, self._layout, [self._input(one) for one in files])
            self._replace(files, self._write(rows, "part"))

    def _input(self, file: File) -> Input:
        first = [self._layout.schema.field(name) for name in self._layout.order[:1]]
        return Input(file.path, next(iter(file.bounds(first)), None), partial(file.marks, self._place))

    def _write(self, tables: Iterable[pa.Table], kind: str, *, sorts: bool = False) -> list[WrittenFile]:
        writer = FilesWriter(self._place, self._layout, new_name(kind), sorts=sorts)
        try:
            for _ in map(writer.write, tables):
                pass  # no variable for what is written: it would stay in memory while the next table is made
            return writer.close()
        except BaseException:
            writer.abandon()
            raise
        finally:
            trim()

    def _replace(self, files: Sequence[File], made: Sequence[WrittenFile]) -> None:
        """Puts new files in the place of others in the list, so that neighbouring files stay neighbours."""
        gone = {id(one) for one in files}
        at = next((index for index, one in enumerate(self._files) if id(one) in gone), len(self._files))
        kept = [one for one in self._files if id(one) not in gone]
        self._files = [*kept[:at], *map(NewFile, made), *kept[at:]]
        for one in files:
            if isinstance(one, NewFile):
                self._place.delete(one.path)

    # -- the outcome

    def actions(self, *, data_change: bool = True) -> list[Action]:
        """Returns the actions that make the set the files of the table. Raises `Conflict` if others have deleted files
        that were made for it."""
        self._expect_made()
        kept = {one.live.path for one in self._files if isinstance(one, SnapshotFile)}
        removes = [one.remove(data_change=data_change) for one in self._snapshot if one.path not in kept]
        return [*self.adds(data_change=data_change), *removes]

    def _expect_made(self) -> None:
        if time.monotonic() - self._since < _LONG_SECONDS:
            return
        made = [one.path for one in self._files if isinstance(one, NewFile)]
        if lost := sum(not self._place.has(path) for path in made):
            raise Conflict(f"{lost} of the files that were made for {self._place.uri} are gone")

    def adds(self, *, data_change: bool = True) -> list[Add]:
        return [one.made.add(data_change=data_change) for one in self._files if isinstance(one, NewFile)]

    def discard(self) -> None:
        """Deletes all files made for the batch, which will not be committed."""
        for one in self._files:
            if isinstance(one, NewFile):
                self._place.delete(one.path)
        self._files = [*map(SnapshotFile, self._snapshot)]
