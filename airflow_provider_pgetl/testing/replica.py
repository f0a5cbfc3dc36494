"""A table in a destination, driven as the engine would drive it: copied, claimed, changed from position to position."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_provider_pgetl.engine.changes.batch import EventBatch, Move, Step, Target
from airflow_provider_pgetl.engine.changes.tuples import COPY_BINARY_HEADER, COPY_BINARY_TRAILER
from airflow_provider_pgetl.engine.destinations import copy_text
from airflow_provider_pgetl.engine.destinations.protocol import AtomicCopy, Destination, Positions, RangeCopy
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

    @property
    def target(self) -> Target:
        return Target(self.pipeline, self.schema, self.generation)

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
        if isinstance(self.destination, RangeCopy):
            blocks = self.copy_stream(rows)
            return self.destination.write_range(self.target, attempt, number, blocks)
        self.destination.write_table_rows(self.schema, record_batch(self.schema, rows))
        return len(rows)

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
