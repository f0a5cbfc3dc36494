"""How a table is cut into ranges that can be copied side by side. Pure.

A range is a run of heap blocks of one leaf. Ranges are cut by bytes, TOAST included, from the file's real size, which
costs nothing to know. The last range of each leaf is open: the file may have grown since it was measured, and a row
of the snapshot is in exactly one range whatever happens, as long as the file stays the same one. Therefore a range
carries the leaf's OID and its file's number, to be asserted when it is read. Largest leaves come first: a big one is
not begun last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

from airflow_provider_pgetl.engine.source.leaves import Leaf
from airflow_provider_pgetl.engine.tables import Column, TableName, TableSchema

CopyFormat = Literal["binary", "text", "csv"]

_OPTIONS: Mapping[CopyFormat, str] = {
    "binary": "FORMAT binary",
    "text": "FORMAT text",
    "csv": "FORMAT csv, FORCE_QUOTE *",
}


@dataclass(frozen=True, slots=True)
class Range:
    """Blocks `first_block` to `last_block`, both included, of the leaf `relation`; to its end if `last_block` is None.

    Numbers are unique within one plan for one table. `size` is an estimate, for progress.
    """

    number: int
    relation: TableName
    oid: int
    filenode: int
    first_block: int
    last_block: int | None
    size: int = 0


def plan_ranges(leaves: Sequence[Leaf], range_bytes: int) -> tuple[Range, ...]:
    """Ranges of about `range_bytes` that together hold every row of the leaves once. An empty leaf has one, too."""
    numbers = count()
    by_size = sorted(leaves, key=lambda leaf: (-leaf.size, leaf.name))
    return tuple(one for leaf in by_size for one in _cut(leaf, range_bytes, numbers))


def range_query(
    schema: TableSchema,
    one: Range,
    copy_format: CopyFormat,
    *,
    row_filter: str | None = None,
    as_text: Collection[str] = (),
) -> str:
    """The COPY that sends the range's rows: the published columns, in their order, where the row filter holds.

    In binary, columns named in `as_text`, and those whose type has no binary form, are sent as their text, as
    pgoutput sends them. In text and CSV there is nothing to tell apart. CSV quotes every value, so that NULL (nothing)
    differs from an empty one.
    """
    binary = copy_format == "binary"
    columns = ", ".join(
        _as_text(column) if binary and _needs_text(column, as_text) else column.sql for column in schema.columns
    )
    conditions = " AND ".join(_conditions(one, row_filter))
    rows = f"SELECT {columns} FROM ONLY {one.relation.sql} WHERE {conditions}"
    return f"COPY ({rows}) TO STDOUT ({_OPTIONS[copy_format]})"


def _cut(leaf: Leaf, range_bytes: int, numbers: Iterator[int]) -> Iterator[Range]:
    pieces = max(1, min(leaf.blocks, round(leaf.size / range_bytes)))
    edges = [leaf.blocks * piece // pieces for piece in range(pieces)]
    ends = [edge - 1 for edge in edges[1:]]
    for first, last in zip(edges, [*ends, None], strict=True):
        yield Range(next(numbers), leaf.name, leaf.oid, leaf.filenode, first, last, leaf.size // pieces)


def _conditions(one: Range, row_filter: str | None) -> Iterator[str]:
    yield f"ctid >= '({one.first_block},0)'::pg_catalog.tid"
    if one.last_block is not None:
        yield f"ctid < '({one.last_block + 1},0)'::pg_catalog.tid"
    if row_filter is not None:
        yield f"({row_filter})"


def _needs_text(column: Column, as_text: Collection[str]) -> bool:
    return column.name in as_text or not column.type.sendable


def _as_text(column: Column) -> str:
    """The output function's text. A cast is not the same: it says ``true`` for ``t`` and loses a char(n)'s blanks.

    Not `CASE WHEN c IS NULL`: a composite of nothing but NULLs *is* NULL to that test, and yet no NULL.
    """
    return f"CASE WHEN pg_catalog.num_nulls({column.sql}) = 0 THEN pg_catalog.concat({column.sql}) END"
