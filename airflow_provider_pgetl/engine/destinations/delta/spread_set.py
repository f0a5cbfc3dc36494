"""A table's files while changes are merged into them by others: each file that the changes may touch is one task.

The unit of work, *merge these changes into this file*, is that of the worker's own merge: a `WorkingSet` of one file.
All that a task needs is in `merge_into_file`'s arguments: of the changes, which lie in a file beside the landing, it
reads those that the bounds of its file admit, and it leaves new files in the table's folder, which nobody sees. It may
run twice, or twice at once: each run names its files anew, and only those that it answers can become the table's. What
else was written is for a vacuum.

Truncates and new rows need no task, and a keyless table is merged where its merge is driven: of equal rows in many
files as many must go as were asked for, which is counted from file to file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from airflow_provider_pgetl.engine.destinations.delta.data_files import Layout, Written
from airflow_provider_pgetl.engine.destinations.delta.lookup import Lookup
from airflow_provider_pgetl.engine.destinations.delta.merging import Changes
from airflow_provider_pgetl.engine.destinations.delta.net_files import read_within, write_sorted
from airflow_provider_pgetl.engine.destinations.delta.snapshot import LiveFile
from airflow_provider_pgetl.engine.destinations.delta.storage import Place
from airflow_provider_pgetl.engine.destinations.delta.working_set import File, WorkingSet
from airflow_provider_pgetl.engine.destinations.protocol import Answer, Item, Misses, Spread
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.tables import TableSchema


@dataclass(frozen=True, slots=True)
class Errand:
    """What the tasks of one merge have in common. The places hold the keys to the store."""

    changes_at: Place
    changes: str
    table: Place
    layout: Layout


@dataclass(frozen=True, slots=True)
class Outcome:
    """`made` takes the file's place; None where no change concerned it. `found` counts the changes of rows in it."""

    made: tuple[Written, ...] | None
    found: Misses


def merge_into_file(errand: Errand, file: LiveFile) -> Outcome:
    """What a task does."""
    bounds = file.bounds([errand.layout.schema.field(name) for name in errand.layout.key])
    changes = read_within(errand.changes_at, errand.changes, bounds)
    files = _OneFile(errand.table, errand.layout, [file])
    try:
        missed = files.merge(changes)
        return files.outcome(Misses(changes.rows.num_rows - missed.updates, changes.deletes.num_rows - missed.deletes))
    except BaseException:
        files.discard()
        raise


def one_by_one(function: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer | PgetlError]:
    """In this thread."""
    return [_answer(function, item) for item in items]


def _answer(function: Callable[[Item], Answer], item: Item) -> Answer | PgetlError:
    try:
        return function(item)
    except PgetlError as error:
        return error


class _OneFile(WorkingSet):
    def outcome(self, found: Misses) -> Outcome:
        untouched = any(one.live is not None for one in self._files)
        return Outcome(None if untouched else tuple(one.made for one in self._files if one.made is not None), found)


class SpreadSet(WorkingSet):
    """`aside` is where the changes lie while tasks read them; `new_path` names that file."""

    def __init__(
        self,
        place: Place,
        schema: TableSchema,
        layout: Layout,
        snapshot: Iterable[LiveFile],
        spread: Spread,
        aside: tuple[Place, Callable[[], str]],
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

    def _scattered(self, changes: Changes) -> list[Outcome]:
        """Every file that the changes may touch, each in a task; those that were touched are replaced."""
        if not changes:
            return []
        lookup = Lookup(changes.keys)
        touched = [file for file in self._files if lookup.within(file.bounds(list(changes.keys.schema))) is not None]
        if not touched:
            return []
        path = self._new_path()
        write_sorted(self._aside, path, self._schema, changes)
        try:
            errand = Errand(replace(self._aside), path, replace(self._place), self._layout)
            answers = self._spread(partial(merge_into_file, errand), [_live(file) for file in touched])
        finally:
            self._aside.delete(path)
        return self._taken_over(touched, answers)

    def _taken_over(self, files: Sequence[File], answers: Sequence[Outcome | PgetlError]) -> list[Outcome]:
        """All that was made, before the first failure is raised: so it is discarded with the rest."""
        for file, answer in zip(files, answers, strict=True):
            if isinstance(answer, Outcome) and answer.made is not None:
                self._replace([file], answer.made)
        failed = [answer for answer in answers if isinstance(answer, PgetlError)]
        if failed:
            raise failed[0]
        return [answer for answer in answers if isinstance(answer, Outcome)]


def _live(file: File) -> LiveFile:
    """As the log would have it."""
    if file.live is not None:
        return file.live
    assert file.made is not None, "a file is old or new"
    return LiveFile.of(file.made.add())
