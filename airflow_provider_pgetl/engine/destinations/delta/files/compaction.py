"""Reads the rows of several files for compaction: without deleted rows, in the order of their keys.

Files whose bounds do not overlap are read one after the other. Files whose bounds overlap are merged by runs: a file
that was written in pieces, each of them sorted, has a run of row groups for each piece, and all runs are merged at
once. The number of open files and runs is limited, and so is what is held of them in memory. If there are more, those
that begin with the least keys are merged first, and keys then overlap between one merge and the next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from airflow_provider_pgetl.engine.destinations.delta.files.data_files import FileReader, Layout
from airflow_provider_pgetl.engine.destinations.delta.files.deletion_vectors import Marks
from airflow_provider_pgetl.engine.destinations.delta.files.key_order import Run, clusters, merged_runs
from airflow_provider_pgetl.engine.destinations.delta.log.actions import Bounds
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder

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
