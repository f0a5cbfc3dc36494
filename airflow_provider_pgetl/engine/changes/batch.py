"""The batch that a destination receives: whole source transactions, in commit order, with the positions they lead to;
and the rows in it, as pgoutput sent them.

A batch is a sequence of steps. Steps are applied in their order; within one step the changes of one table are in
order. Steps of different tables between two truncates of either are independent of each other. A batch may be larger
than memory: `steps` is read from disk as it is iterated, can be iterated again, and never holds more than one step.

Batches use the destination's names: `schema.table` is the destination's name of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from airflow_provider_pgetl.engine.changes.tuples import (
    ABSENT,
    Bytes,
    Ints,
    Tuples,
    missing,
    parse,
    scatter,
    widths,
)
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema


class Kind(StrEnum):
    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Change:
    """One row change, for destinations that apply single rows.

    `old` is the old key (or, under replica identity full, the old row), None where the source did not send it; `new` is
    the new row, None for a delete. A column missing from `new` is unchanged: its value was too large for the source to
    send it again.
    """

    kind: Kind
    commit_lsn: CommitLsn
    ordinal: int
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None


class RowChanges(Protocol):
    """Changes of one table, in order. The engine's implementation is `WireRows`."""

    @property
    def schema(self) -> TableSchema: ...

    def __len__(self) -> int: ...

    def changes(self) -> Iterator[Change]: ...


@dataclass(frozen=True, slots=True)
class Truncate:
    """The table was truncated. A barrier: every step before it in the batch is applied before it."""

    schema: TableSchema
    commit_lsn: CommitLsn
    ordinal: int


Step = RowChanges | Truncate


@dataclass(frozen=True, slots=True)
class Target:
    """A table in a destination, with the pipeline and generation for which it is written. `replaces`: whether a copy
    may replace foreign rows, which this pipeline did not write."""

    pipeline: str
    schema: TableSchema
    generation: int
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class TablePosition:
    """The position of a table in a destination, which the destination recorded together with the data."""

    generation: int
    position: Boundary


@dataclass(frozen=True, slots=True)
class Move:
    """The compare-and-set of one table's position: from `expected` to `to`, within `target.generation`."""

    target: Target
    expected: Boundary
    to: Boundary


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Steps, and the moves that the destination commits with them. Every table in `steps` has a move; a move may come
    without steps."""

    pipeline: str
    epoch: int
    moves: Mapping[TableName, Move]
    steps: Iterable[Step] = field(default=())


# -- Row messages of one table as pgoutput sent them, and their parsed view, which all other code uses. ----------------
#
# The stream gathers whole messages without decoding them; this module parses them all at once with numpy.
# A message is a CopyData payload: 25 bytes of XLogData header, then
#
#     'I' relation 'N' tuple          'U' relation ['K'|'O' old] 'N' new          'D' relation 'K'|'O' old

INSERT, UPDATE, DELETE = ord("I"), ord("U"), ord("D")
_HEADER = 25
_MARKER = _HEADER + 5
_TUPLE = _MARKER + 1
_KINDS = {INSERT: Kind.INSERT, UPDATE: Kind.UPDATE, DELETE: Kind.DELETE}


@dataclass(frozen=True)
class WireRows:
    """Changes of one table, in order.

    `starts` holds the offset of each message in `buffer`. `commit_lsns` and `ordinals` are the position of each change,
    `commit_times` the source's commit time in microseconds since 2000-01-01.
    """

    schema: TableSchema
    buffer: Bytes
    starts: Ints
    commit_lsns: Ints
    ordinals: Ints
    commit_times: Ints

    def __len__(self) -> int:
        return len(self.starts)

    @cached_property
    def ops(self) -> Bytes:
        """INSERT, UPDATE or DELETE per change."""
        return np.asarray(self.buffer[self.starts + _HEADER])

    @cached_property
    def markers(self) -> Bytes:
        """N where the new row comes first; K before an old key, O before a whole old row."""
        return np.asarray(self.buffer[self.starts + _MARKER])

    @cached_property
    def has_old(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.asarray(self.markers != ord("N"))

    @cached_property
    def has_new(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.asarray(self.ops != DELETE)

    @property
    def old(self) -> Tuples:
        """Per change the old key or row, missing where the source sent none. A column that the replica identity does
        not cover is null here, whatever its old value: only key columns, and values that are not null, are reliable."""
        return self._tuples[0]

    @property
    def new(self) -> Tuples:
        """Per change the new row, missing for deletes. A value that the old tuple holds is never absent here: key
        columns are not, nor any column where the source sends whole old rows."""
        return self._tuples[1]

    @cached_property
    def _tuples(self) -> tuple[Tuples, Tuples]:
        """The old and new tuples, after the checks that every insert is whole and every change identifies its row."""
        old, new = self.sent
        new = new.with_values_of(old)
        self._expect_whole_inserts(new)
        self._expect_keys(old, new)
        return old, new

    @cached_property
    def sent(self) -> tuple[Tuples, Tuples]:
        """The old and new tuples as the source sent them: a value that only the old one holds is absent from the
        new."""
        old, ends = self._parsed(np.flatnonzero(self.has_old), self.starts + _TUPLE)
        new, _ = self._parsed(np.flatnonzero(self.has_new), np.where(self.has_old, ends + 1, self.starts + _TUPLE))
        return old, new

    def _parsed(self, rows: Ints, starts: Ints) -> tuple[Tuples, Ints]:
        """Returns the tuples of the changes `rows`, missing for the others, and the offset at which each ends."""
        ends = np.zeros(len(self), dtype=np.int64)
        if not len(rows):
            return missing(self.buffer, self._width, len(self)), ends
        self._check_widths(starts[rows])
        tuples, ends[rows] = parse(self.buffer, starts[rows], self._width)
        return scatter(tuples, rows, len(self)), ends

    def _expect_whole_inserts(self, new: Tuples) -> None:
        lacking = np.flatnonzero(new.absent[:, self.ops == INSERT].any(axis=1)).tolist()
        if lacking:
            names = ", ".join(self.schema.names[column] for column in lacking)
            message = (
                f"A row that an UPDATE brought into the row filter of {self.schema.table} came without {names}: "
                "the source does not send large values that the UPDATE left unchanged."
            )
            raise PgetlError(ErrorKind.UNSENT_VALUE, message, table=str(self.schema.table))

    def _expect_keys(self, old: Tuples, new: Tuples) -> None:
        """Raises if an update or delete does not identify its row."""
        if self.schema.key:
            keys = self.schema.key_indexes
            before = np.where(self.has_old, old.valued(keys), new.valued(keys))
            unknown = ~(before & (new.valued(keys) | ~self.has_new))
        else:
            touched = self.ops != INSERT
            unknown = touched & (~self.has_old | old.absent.any(axis=0) | new.absent.any(axis=0))
        if unknown.any():
            message = f"A change of {self.schema.table} does not say by {_known_by(self.schema)} which row it is about."
            raise PgetlError(ErrorKind.UNKNOWN_ROW, message, table=str(self.schema.table))

    @property
    def _width(self) -> int:
        return len(self.schema.columns)

    def _check_widths(self, starts: Ints) -> None:
        if bool(np.any(widths(self.buffer, starts) != self._width)):
            message = f"A change of {self.schema.table} does not have the {self._width} columns of its table."
            raise PgetlError(ErrorKind.SCHEMA, message, table=str(self.schema.table))

    def changes(self) -> Iterator[Change]:
        """Yields one object per change. Values are bytes as the source sent them (text, unless binary was
        requested)."""
        for row in range(len(self)):
            yield Change(
                _KINDS[int(self.ops[row])],
                CommitLsn(int(self.commit_lsns[row])),
                int(self.ordinals[row]),
                self._row(self.old, self._old_columns, row) if self.has_old[row] else None,
                self._row(self.new, range(self._width), row) if self.has_new[row] else None,
            )

    @property
    def _old_columns(self) -> Sequence[int]:
        return range(self._width) if self.schema.identity == "full" else self.schema.key_indexes

    def _row(self, tuples: Tuples, columns: Sequence[int], row: int) -> Mapping[str, bytes | None]:
        names = self.schema.names
        return {names[c]: tuples.value(c, row) for c in columns if tuples.kinds[c, row] != ABSENT}


def _known_by(schema: TableSchema) -> str:
    return ", ".join(schema.key) or "all its values"


def wire_rows(
    schema: TableSchema,
    messages: Sequence[bytes],
    commits: Sequence[tuple[int, int, int]],
    ordinals: Sequence[int],
) -> WireRows:
    """Returns rows from messages. `commits` has (first row, commit LSN, commit time) for each run of one
    transaction."""
    lengths = np.fromiter(map(len, messages), dtype=np.int64, count=len(messages))
    return sealed_rows(schema, b"".join(messages), lengths, commits, np.asarray(ordinals, dtype=np.int64))


def sealed_rows(
    schema: TableSchema,
    data: bytes | memoryview,
    lengths: Ints,
    commits: Sequence[tuple[int, int, int]] | Ints,
    ordinals: Ints,
) -> WireRows:
    """Returns rows from messages that are concatenated in `data`. `lengths` has the length of each message; for
    `commits` see `wire_rows`."""
    runs = np.asarray(commits, dtype=np.int64).reshape(-1, 3)
    counts = np.diff(np.append(runs[:, 0], len(lengths)))
    return WireRows(
        schema,
        np.frombuffer(data, dtype=np.uint8),
        np.cumsum(lengths) - lengths,
        np.repeat(runs[:, 1], counts),
        ordinals,
        np.repeat(runs[:, 2], counts),
    )
