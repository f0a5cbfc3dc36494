"""Changes applied by deletion vectors: a changed row is marked as deleted, and its new row is written to a new file.

The cost of a batch is in proportion to its changes, not to the size of the table: no file is rewritten. Rows are found
by the key indexes of their files (`key_index`), or by reading the key columns if a file has none. Old rows are read
only if a change leaves values absent (unchanged TOAST), or if others have added columns to the table. Readers must
support deletion vectors; compaction (`maintenance`) folds these into the files once the deleted share of a file is
large.

A batch may be merged in several pieces: rows that an earlier piece has written are found in the files made for it, and
are marked there like all others. A file whose rows are all deleted is removed from the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from airflow_provider_pgetl.engine.destinations.delta.files.data_files import FileReader, Ints, Layout
from airflow_provider_pgetl.engine.destinations.delta.files.deletion_vectors import Marks, vector_path, write_marks
from airflow_provider_pgetl.engine.destinations.delta.files.key_index import FileIndex, KeyIndexes
from airflow_provider_pgetl.engine.destinations.delta.files.keys import Lookup, taken
from airflow_provider_pgetl.engine.destinations.delta.log.actions import Action
from airflow_provider_pgetl.engine.destinations.delta.log.snapshot import LiveFile
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.destinations.delta.merge.file_merge import (
    DELETE,
    BagMerge,
    Changes,
    Mask,
    narrowed,
    overlaid,
)
from airflow_provider_pgetl.engine.destinations.delta.merge.working_set import MERGE_BYTES, File, NewFile, WorkingSet
from airflow_provider_pgetl.engine.destinations.protocol import Misses
from airflow_provider_pgetl.engine.runtime.processes import WORKING


class MarkingSet(WorkingSet):
    def __init__(self, place: TableFolder, layout: Layout, snapshot: Iterable[LiveFile], indexes: KeyIndexes) -> None:
        super().__init__(place, layout, snapshot)
        self._indexes = indexes
        self._marks: dict[str, Marks] = {}
        self._altered: set[str] = set()
        self._vectors: str | None = None

    # -- changing

    def merge(self, changes: Changes) -> Misses:
        changes = changes.widened(self._layout)
        hit = np.zeros(len(changes.actions), np.bool_)
        self.append(self._new_rows(self._candidates(changes.keys), changes, hit))
        missed = changes.actions[~hit]
        deletes = int((missed == DELETE).sum())
        return Misses(updates=len(missed) - deletes, deletes=deletes)

    def _new_rows(self, files: Iterable[File], changes: Changes, hit: Mask) -> Iterator[pa.Table]:
        """Yields the rows to append, and marks the rows that they replace as deleted."""
        lookup = Lookup(changes.keys)
        for file in files:
            rows, hits = self._found(file, changes, lookup)
            if not len(rows):
                continue
            hit[hits] = True
            self._mark(file, rows)
            lives = changes.actions[hits] != DELETE
            if lives.any():
                yield from self._fresh(file, changes, rows[lives], hits[lives])
        yield changes.inserts

    def _found(self, file: File, changes: Changes, lookup: Lookup) -> tuple[Ints, Ints]:
        """Returns the live rows of the file that changes refer to, rising, and for each the number of its change."""
        none = np.empty(0, np.int64)
        within = lookup.within(file.bounds(list(changes.keys.schema)))
        if within is None:
            return none, none
        numbers = narrowed(lookup, within)
        names = changes.keys.column_names
        path = f"{self._place.uri}/{file.path}"
        with self._indexes.known(path, names) as index:
            if index is not None:
                return self._looked_up(file, index, within, numbers)
        with FileReader(self._place, file.path, self._layout.schema) as reader, WORKING.taken(MERGE_BYTES):
            with self._indexes.made(path, names, reader.rows, reader.batches(names)) as index:
                if index is not None:
                    return self._looked_up(file, index, within, numbers)
            return self._read_keys(reader, self._marked(file), within, numbers)

    def _looked_up(self, file: File, index: FileIndex, within: Lookup, numbers: Ints) -> tuple[Ints, Ints]:
        rows, hits = index.find(self._indexes.hashes(within.keys))
        alive = ~self._marked(file).among(rows)
        return rows[alive], numbers[hits[alive]]

    def _read_keys(self, reader: FileReader, marks: Marks, within: Lookup, numbers: Ints) -> tuple[Ints, Ints]:
        rows, hits = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        groups = reader.groups.admitting(within.keys)
        for places, keys in reader.live_batches(marks, within.keys.column_names, groups):
            found = within.find(keys)
            if found.null_count < len(found):
                rows.append(places[found.is_valid().to_numpy(zero_copy_only=False)])
                hits.append(numbers[found.drop_null().to_numpy()])
        return np.concatenate(rows), np.concatenate(hits)

    def _fresh(self, file: File, changes: Changes, rows: Ints, hits: Ints) -> Iterator[pa.Table]:
        """Yields the rows that replace these rows of the file. Values that changes leave absent are read from it."""
        sources = changes.sources[hits]
        names = [name for name, absent in changes.absent.items() if absent[sources].any()]
        if not names:
            yield taken(changes.rows, sources)
            return
        with FileReader(self._place, file.path, self._layout.schema) as reader, WORKING.taken(MERGE_BYTES):
            for first, old in reader.batches(names, reader.groups_with(rows)):
                here = slice(*np.searchsorted(rows, [first, first + old.num_rows]))
                if here.start < here.stop:
                    yield overlaid(changes, hits[here], old, rows[here] - first)

    def _merge_bag_file(self, file: File, merge: BagMerge) -> None:
        within = merge.lookup.within(file.bounds(list(merge.lookup.keys.schema)))
        if within is None or not merge.missed:
            return
        names, marks = merge.lookup.keys.column_names, self._marked(file)
        with FileReader(self._place, file.path, self._layout.schema) as reader, WORKING.taken(MERGE_BYTES):
            for rows, values in reader.live_batches(marks, names):
                doomed = rows[merge.doomed(values)]
                if len(doomed):
                    self._mark(file, doomed)

    # -- marks

    def _marked(self, file: File) -> Marks:
        if file.path not in self._marks:
            self._marks[file.path] = file.marks(self._place)
        return self._marks[file.path]

    def _mark(self, file: File, rows: Ints) -> None:
        self._marked(file).add(rows)
        self._altered.add(file.path)

    # -- the outcome

    def actions(self, *, data_change: bool = True) -> list[Action]:
        self._replace([one for one in self._files if self._is_deleted(one)], [])
        actions = super().actions(data_change=data_change)
        kept = {one.path: one for one in self._files if one.path in self._altered}
        vectors = write_marks(self._place, {path: self._marks[path] for path in kept})
        self._vectors = vector_path(self._place, next(iter(vectors.values()))) if vectors else None
        made = {one.path for one in kept.values() if isinstance(one, NewFile)}
        actions = [one for one in actions if one.path not in made]
        for path, file in kept.items():
            actions.append(file.live.marked(vectors[path], self._rows_of(file)))
            if not isinstance(file, NewFile):
                actions.append(file.live.remove(data_change=data_change))
        return actions

    def _is_deleted(self, file: File) -> bool:
        """Whether all rows of the file are deleted."""
        return file.path in self._altered and len(self._marks[file.path]) >= self._rows_of(file)

    def _rows_of(self, file: File) -> int:
        """Returns the number of rows, including deleted ones; reads it from the file if the log does not have it."""
        if file.rows is not None:
            return file.rows
        with FileReader(self._place, file.path, self._layout.schema) as reader:
            return reader.rows

    def discard(self) -> None:
        if self._vectors is not None:
            self._place.delete(self._vectors)
        super().discard()
        self._marks, self._altered = {}, set()
