"""Keeping tables fit between batches: many small files become few.

Every batch adds files, and small batches small ones; a table of thousands of them is slow to read and to merge into. So
when a table has gathered enough small files, the smallest are written together, in one commit that changes no row and
carries the record on as it is. It stands on the snapshot that the batch before has left: so a worker that was fenced
off since collides with its successor, and cannot compact either. Files made so grow by tiers: each
row is rewritten a few times on its way to the target size, not with every compaction.

Deletion vectors are folded in by the same means: whatever is written together loses its deleted rows, and when no small
files are to be written, the file with the largest share of deleted rows is written anew, if that is a fifth at least.

A round is short, so that the batch behind it does not wait long: it reads `ROUND_BYTES`, or what becomes one file of
the target size if that is more. What is left over is for later rounds. A single file that is larger, as others may have
written, is only written anew once half of its rows are deleted.

Checkpoints are made by delta-rs in the course of commits, as the table's properties say. What is removed, and when, is
`vacuum`'s affair.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from itertools import accumulate

from airflow_provider_pgetl.engine.destinations.delta.log import Conflict, TableLog
from airflow_provider_pgetl.engine.destinations.delta.shape import Shape
from airflow_provider_pgetl.engine.destinations.delta.snapshot import LiveFile
from airflow_provider_pgetl.engine.destinations.delta.working_set import WorkingSet
from airflow_provider_pgetl.engine.table_names import written

log = logging.getLogger(__name__)

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


def compact(table: TableLog, shape: Shape) -> bool:
    """One round, of the snapshot as it is loaded; whether there was anything to do. Somebody else's commit in between
    leaves it for the next time."""
    picked = chosen(table.files(), shape.options.target_file_bytes)
    if not picked:
        return False
    files = WorkingSet(table.place, shape.layout_in(table), picked)
    files.compact()
    try:
        table.commit(files.actions(data_change=False), table.standing())
    except Conflict as conflict:
        files.discard()
        log.info("The compaction of %s was in vain: %s", written(shape.table), conflict)
        return False
    return True
