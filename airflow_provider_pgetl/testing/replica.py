"""A table in a destination, driven as the engine would drive it: copied, claimed, changed from position to position."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_provider_pgetl.engine.changes.batch import EventBatch, Move, Step, Target
from airflow_provider_pgetl.engine.changes.tuples import COPY_BINARY_HEADER, COPY_BINARY_TRAILER
from airflow_provider_pgetl.engine.destinations import copy_text
from airflow_provider_pgetl.engine.destinations.protocol import (
    AtomicCopy,
    Destination,
    Positions,
    RangeCopy,
    RangeRows,
)
from airflow_provider_pgetl.engine.positions import Boundary
from airflow_provider_pgetl.engine.tables import Column, Identity, PgType, TableName, TableSchema
from airflow_provider_pgetl.testing.pgoutput import Wire

INT8 = PgType(20, "bigint")
TEXT = PgType(25, "text")
Line = tuple[bytes | None, ...]


def sample_schema(key: tuple[str, ...] = ("id",), identity: Identity = "default") -> TableSchema:
    """A table of its own name with the columns id, name and note."""
    columns = (
        Column("id", INT8, "bigint", not_null=True),
        Column("name", TEXT, "text"),
        Column("note", TEXT, "text"),
    )
    table = TableName("pgetl_conformance", f"t_{uuid.uuid4().hex[:12]}")
    return TableSchema(table, 16_999, columns, key, identity)


@dataclass
class Replica:
    """One table of one pipeline; moves along boundaries 10, 20, 30, …"""

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
        """Copy the table with these rows and claim the pipeline, as far as the destination knows of such things."""
        if isinstance(self.destination, AtomicCopy):
            self.destination.begin_copy(self.target, 1)
            self.stage(1, 0, rows)
            self.destination.finish_copy(self.target, 1, self.position)
        else:
            self.destination.write_table_rows(self.schema, record_batch(self.schema, rows))
        if isinstance(self.destination, Positions):
            self.destination.claim(self.pipeline, self.epoch)
        return self

    def stage(self, attempt: int, number: int, rows: Sequence[Line]) -> int:
        """Bring rows of a copy, the destination's own way."""
        if isinstance(self.destination, RangeCopy | RangeRows):
            return self.stage_raw(attempt, number, self.copied(rows))
        self.destination.write_table_rows(self.schema, record_batch(self.schema, rows))
        return len(rows)

    def stage_raw(self, attempt: int, number: int, pieces: Iterable[Any]) -> int:
        """Bring a range: the blocks of its COPY stream, or its batches."""
        if isinstance(self.destination, RangeCopy):
            return self.destination.write_range(self.target, attempt, number, pieces)
        assert isinstance(self.destination, RangeRows)
        return self.destination.write_range_rows(self.target, attempt, number, self.position, pieces)

    def copied(self, rows: Sequence[Line]) -> Iterable[Any]:
        """Rows as the destination wants those of a range."""
        if isinstance(self.destination, RangeCopy):
            return self.copy_stream(rows)
        return [text_batch(self.schema, rows)] if rows else []

    def copy_stream(self, rows: Sequence[Line]) -> Iterable[bytes]:
        assert isinstance(self.destination, RangeCopy)
        if self.destination.copy_format(self.schema) == "text":
            return map(copy_text.write, rows)
        return _binary_stream(rows)

    def batch(self, *steps: Step, to: int | None = None) -> EventBatch:
        """The batch that comes next."""
        reached = Boundary(self.position.lsn + 10 if to is None else to)
        move = Move(self.target, self.position, reached)
        return EventBatch(self.pipeline, self.epoch, {self.schema.table: move}, steps)

    def apply(self, *steps: Step) -> None:
        batch = self.batch(*steps)
        self.destination.write_events(batch)
        self.position = batch.moves[self.schema.table].to


def record_batch(schema: TableSchema, rows: Sequence[Line]) -> pa.RecordBatch:
    """Rows as a copy brings them: each value by Postgres' text form."""
    columns = [[None if row[at] is None else _text(row[at]) for row in rows] for at in range(len(schema.columns))]
    arrays = [pa.array(values, pa.string()) for values in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(schema.names))


def text_batch(schema: TableSchema, rows: Sequence[Line]) -> pa.RecordBatch:
    """Rows as a copy brings them to a destination that wants their texts."""
    arrays = [pa.array([row[at] for row in rows], pa.binary()) for at in range(len(schema.columns))]
    return pa.RecordBatch.from_arrays(arrays, names=list(schema.names))


def _text(value: bytes | None) -> str:
    return (value or b"").decode()


def _binary_stream(rows: Sequence[Line]) -> Iterator[bytes]:
    yield COPY_BINARY_HEADER
    for number, *texts in rows:
        values = [struct.pack("!q", int(number or 0)), *texts]
        yield struct.pack("!h", len(values)) + b"".join(map(_binary_field, values))
    yield COPY_BINARY_TRAILER


def _binary_field(value: bytes | None) -> bytes:
    return struct.pack("!i", -1) if value is None else struct.pack("!i", len(value)) + value
