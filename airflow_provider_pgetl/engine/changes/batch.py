"""What a destination is handed: whole source transactions, in commit order, with the positions they lead to.

A batch is a sequence of steps. Steps are applied in their order; within one step the changes of one table are in
order. Steps of different tables between two truncates of either are independent of each other. A batch may be larger
than memory: `steps` is read from disk as it is iterated, can be iterated again, and never holds more than one step.

Destinations know tables by their own names: `schema.table` is the destination's name of the table.
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
    """One row change, for destinations that ask for rows.

    `old` holds the key (or, under replica identity full, the row) as it was, where the source sent it; `new` the row
    as it is.
    A column missing from `new` is unchanged: its value was too large for the source to send it again.
    """

    kind: Kind
    commit_lsn: CommitLsn
    ordinal: int
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None


class RowChanges(Protocol):
    """Changes of one table, in order. The engine's own form is `rows.WireRows`."""

    @property
    def schema(self) -> TableSchema: ...

    def __len__(self) -> int: ...

    def changes(self) -> Iterator[Change]: ...


@dataclass(frozen=True, slots=True)
class Truncate:
    """The table was emptied. A barrier: steps before it come before it."""

    schema: TableSchema
    commit_lsn: CommitLsn
    ordinal: int


Step = RowChanges | Truncate


@dataclass(frozen=True, slots=True)
class Target:
    """A table in a destination: the pipeline and generation on whose behalf it is written. `replaces`: a copy may
    replace rows that the pipeline did not write."""

    pipeline: str
    schema: TableSchema
    generation: int
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class TablePosition:
    """How far a destination's table has come, as the destination itself recorded it together with the data."""

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
    """Steps and the moves that make them count. A table in `steps` has a move; a move may come without steps."""

    pipeline: str
    epoch: int
    moves: Mapping[TableName, Move]
    steps: Iterable[Step] = field(default=())
