"""Builds changes as the source would send them, without a source: an encoder of pgoutput's row messages.

Values are the bytes of a type's text form (or of its binary form, with ``kind=b"b"``), None for NULL, and `ABSENT` for
a large value that an update did not change.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa

from airflow_provider_pgetl.engine.changes.batch import EventBatch, Move, Step, Target, WireRows, wire_rows
from airflow_provider_pgetl.engine.changes.tuples import COPY_BINARY_HEADER, COPY_BINARY_TRAILER
from airflow_provider_pgetl.engine.changes.values import decode
from airflow_provider_pgetl.engine.destinations.protocol import (
    AtomicCopy,
    Destination,
    Positions,
    RangeCopy,
    RangeRows,
)
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import Column, Identity, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.postgres import copy_format


class Absent(Enum):
    """The type of `ABSENT`, the value that the source did not send again."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT
Value = bytes | None | Absent
Row = Sequence[Value]


@dataclass
class Wire:
    """Collects one table's changes, in the order of the calls, as the messages of one transaction after another."""

    schema: TableSchema
    kind: bytes = b"t"
    _messages: list[bytes] = field(default_factory=list)

    def insert(self, new: Row) -> Wire:
        return self._add(b"I", b"N" + self._tuple(new))

    def update(self, new: Row, old: Row | None = None) -> Wire:
        """Adds an update. `old` is the row before it; it is sent whole under replica identity full, else only its key,
        if that changes."""
        return self._add(b"U", self._before(old, new) + b"N" + self._tuple(new))

    def delete(self, old: Row) -> Wire:
        return self._add(b"D", self._identity(old))

    def __len__(self) -> int:
        return len(self._messages)

    def take(self, commit_lsn: int = 1) -> WireRows:
        """Returns the collected changes as one transaction; the next one starts empty."""
        messages, self._messages = self._messages, []
        return wire_rows(self.schema, messages, [(0, commit_lsn, 0)], range(1, len(messages) + 1))

    def _before(self, old: Row | None, new: Row) -> bytes:
        if old is None:
            return b""
        moved = any(old[index] != new[index] for index in self.schema.key_indexes)
        return self._identity(old) if moved or self.schema.identity == "full" else b""

    def _identity(self, old: Row) -> bytes:
        if self.schema.identity == "full":
            return b"O" + self._tuple(old)
        keys = self.schema.key_indexes
        return b"K" + self._tuple([value if index in keys else None for index, value in enumerate(old)])

    def _tuple(self, row: Row) -> bytes:
        return struct.pack("!h", len(row)) + b"".join(map(self._column, row))

    def _column(self, value: Value) -> bytes:
        if value is None:
            return b"n"
        if isinstance(value, Absent):
            return b"u"
        return self.kind + struct.pack("!i", len(value)) + value

    def _add(self, operation: bytes, payload: bytes) -> Wire:
        header = b"w" + struct.pack("!qqq", 0, 0, 0)
        self._messages.append(header + operation + struct.pack("!I", self.schema.relation) + payload)
        return self


# ----------------------------------------------------------------------------------------------------------------------
# A table in a destination, used as the engine would use it: copied, claimed, changed from position to position.

INT8 = PgType(20, "bigint")
TEXT = PgType(25, "text")
Line = tuple[bytes | None, ...]


def sample_schema(key: tuple[str, ...] = ("id",), identity: Identity = "default") -> TableSchema:
    """Returns a table with a unique name and the columns id, name and note."""
    columns = (
        Column("id", INT8, "bigint", not_null=True),
        Column("name", TEXT, "text"),
        Column("note", TEXT, "text"),
    )
    table = TableName("pgetl_conformance", f"t_{uuid.uuid4().hex[:12]}")
    return TableSchema(table, 16_999, columns, key, identity)


@dataclass
class Replica:
    """One table of one pipeline; it moves along the boundaries 10, 20, 30, …"""

    destination: Destination
    schema: TableSchema = field(default_factory=sample_schema)
    pipeline: str = field(default_factory=lambda: f"conformance_{uuid.uuid4().hex[:8]}")
    generation: int = 1
    epoch: int = 1
    position: Boundary = field(default_factory=lambda: Boundary(10))
    replaces: bool = False

    @property
    def target(self) -> Target:
        return Target(self.pipeline, self.schema, self.generation, self.replaces)

    def wire(self) -> Wire:
        return Wire(self.schema)

    def create(self, *rows: Line) -> Replica:
        """Copies the table with these rows and claims the pipeline, as far as the destination supports that."""
        if isinstance(self.destination, AtomicCopy):
            self.copy(1, *rows)
        else:
            self.destination.write_table_rows(self.schema, record_batch(self.schema, rows))
        if isinstance(self.destination, Positions):
            self.destination.claim(self.pipeline, self.epoch)
        return self

    def copy(self, attempt: int, *rows: Line) -> None:
        """Copies the table with these rows as they are at its position."""
        assert isinstance(self.destination, AtomicCopy)
        self.destination.begin_copy(self.target, attempt)
        self.stage(attempt, 0, rows)
        self.destination.finish_copy(self.target, attempt, self.position)

    def stage(self, attempt: int, number: int, rows: Sequence[Line]) -> int:
        """Writes rows of a copy by the method that the destination implements."""
        if isinstance(self.destination, RangeCopy | RangeRows):
            return self.stage_raw(attempt, number, self.copied(rows))
        self.destination.write_table_rows(self.schema, record_batch(self.schema, rows))
        return len(rows)

    def stage_raw(self, attempt: int, number: int, pieces: Iterable[Any]) -> int:
        """Writes a range: the blocks of its COPY stream, or its batches."""
        if isinstance(self.destination, RangeCopy):
            return self.destination.write_range(self.target, attempt, number, pieces)
        assert isinstance(self.destination, RangeRows)
        return self.destination.write_range_rows(self.target, attempt, number, self.position, pieces)

    def copied(self, rows: Sequence[Line]) -> Iterable[Any]:
        """Returns the rows in the form in which the destination takes those of a range."""
        if isinstance(self.destination, RangeCopy):
            return self.copy_stream(rows)
        return [text_batch(self.schema, rows)] if rows else []

    def copy_stream(self, rows: Sequence[Line]) -> Iterable[bytes]:
        assert isinstance(self.destination, RangeCopy)
        if self.destination.copy_format(self.schema) == "text":
            return map(copy_format.write, rows)
        return _binary_stream(rows)

    def batch(self, *steps: Step, to: int | None = None) -> EventBatch:
        """Returns the next batch, which moves the table from its position to `to`, by default ten further."""
        reached = Boundary(self.position.lsn + 10 if to is None else to)
        move = Move(self.target, self.position, reached)
        return EventBatch(self.pipeline, self.epoch, {self.schema.table: move}, steps)

    def apply(self, *steps: Step) -> None:
        batch = self.batch(*steps)
        self.destination.write_events(batch)
        self.position = batch.moves[self.schema.table].to


def record_batch(schema: TableSchema, rows: Sequence[Line]) -> pa.RecordBatch:
    """Returns rows as a copy delivers them: each column in its Arrow type."""
    texts = text_batch(schema, rows).columns
    arrays = [decode(column, values) for column, values in zip(schema.columns, texts, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(schema.names))


def text_batch(schema: TableSchema, rows: Sequence[Line]) -> pa.RecordBatch:
    """Returns rows as a copy delivers them to a destination that takes them as texts."""
    arrays = [pa.array([row[at] for row in rows], pa.binary()) for at in range(len(schema.columns))]
    return pa.RecordBatch.from_arrays(arrays, names=list(schema.names))


def _binary_stream(rows: Sequence[Line]) -> Iterator[bytes]:
    yield COPY_BINARY_HEADER
    for number, *texts in rows:
        values = [struct.pack("!q", int(number or 0)), *texts]
        yield struct.pack("!h", len(values)) + b"".join(map(_binary_field, values))
    yield COPY_BINARY_TRAILER


def _binary_field(value: bytes | None) -> bytes:
    return struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value
