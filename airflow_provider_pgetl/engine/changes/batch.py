"""The batch that a destination receives: whole source transactions, in commit order, with the positions they lead to.

A batch is a sequence of steps. Steps are applied in their order; within one step the changes of one table are in
order. Steps of different tables between two truncates of either are independent of each other. A batch may be larger
than memory: `steps` is read from disk as it is iterated, can be iterated again, and never holds more than one step.

Batches use the destination's names: `schema.table` is the destination's name of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

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
    """Changes of one table, in order. The engine's implementation is `rows.WireRows`."""

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
