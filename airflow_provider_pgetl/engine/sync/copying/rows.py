"""Copied rows as typed record batches, for destinations that do not take the source's COPY stream itself.

The source writes CSV, which `copy_out` parses; `values` gives it types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from airflow_provider_pgetl.engine.copy_out import BATCH_BYTES, gathered, parse_copy_rows
from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.tables import TableSchema
from airflow_provider_pgetl.engine.values import arrow_type, decode


def arrow_schema(schema: TableSchema) -> pa.Schema:
    return pa.schema([pa.field(column.name, arrow_type(column)) for column in schema.columns])


def no_rows(schema: TableSchema) -> pa.RecordBatch:
    """What makes an empty table come to exist."""
    wanted = arrow_schema(schema)
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in wanted], schema=wanted)


def record_batches(
    schema: TableSchema, blocks: Iterable[bytes], batch_bytes: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """The rows of one COPY stream. Each block holds whole rows; a batch holds blocks of about `batch_bytes`."""
    for data in gathered(blocks, batch_bytes):
        yield _typed(schema, parse_copy_rows(data, len(schema.columns)))


def text_batches(
    schema: TableSchema, blocks: Iterable[bytes], batch_bytes: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """The same rows, each value as the text that it came as, in Arrow binary."""
    for data in gathered(blocks, batch_bytes):
        yield pa.RecordBatch.from_arrays(parse_copy_rows(data, len(schema.columns)), names=list(schema.names))


def _typed(schema: TableSchema, texts: list[pa.Array]) -> pa.RecordBatch:
    try:
        arrays = [decode(column, text) for column, text in zip(schema.columns, texts, strict=True)]
    except PgetlError as error:
        raise PgetlError(error.kind, error.message, remedy=error.remedy, table=str(schema.table)) from None
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(schema))
