"""Copied rows as record batches, for destinations that do not take the source's COPY stream itself.

The source sends CSV, which `parse_copy_rows` splits into columns of text. There values are transformed; `decode` then
converts each column to its type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from airflow_provider_pgetl.engine.changes.values import arrow_type, decode
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import TableSchema
from airflow_provider_pgetl.engine.postgres.copy_format import BATCH_BYTES, gathered, parse_copy_rows
from airflow_provider_pgetl.engine.transform.tables import TableTransform


def arrow_schema(schema: TableSchema) -> pa.Schema:
    return pa.schema([pa.field(column.name, arrow_type(column)) for column in schema.columns])


def no_rows(schema: TableSchema) -> pa.RecordBatch:
    """Returns an empty batch, which makes the destination create an empty table."""
    wanted = arrow_schema(schema)
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in wanted], schema=wanted)


def record_batches(
    schema: TableSchema,
    blocks: Iterable[bytes],
    batch_bytes: int = BATCH_BYTES,
    transform: TableTransform | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of one COPY stream with typed columns. Each block holds whole rows; a batch holds blocks of about
    `batch_bytes`."""
    for texts in _columns_of_text(schema, blocks, batch_bytes, transform):
        yield _typed(schema, texts)


def text_batches(
    schema: TableSchema,
    blocks: Iterable[bytes],
    batch_bytes: int = BATCH_BYTES,
    transform: TableTransform | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the same rows, with each value as the text that the source sent, in Arrow binary."""
    for texts in _columns_of_text(schema, blocks, batch_bytes, transform):
        yield pa.RecordBatch.from_arrays(texts, names=list(schema.names))


def _columns_of_text(
    schema: TableSchema, blocks: Iterable[bytes], batch_bytes: int, transform: TableTransform | None
) -> Iterator[list[pa.Array]]:
    """Yields the columns of rows. From here on a copy has no values before their transformation."""
    for data in gathered(blocks, batch_bytes):
        if transform is None:
            yield parse_copy_rows(data, len(schema.columns))
        else:
            yield transform.arrays(_parsed_in_private(schema, data))


def _parsed_in_private(schema: TableSchema, data: bytes) -> list[pa.Array]:
    """Parses rows whose values must not be told: Arrow's error would quote them."""
    try:
        return parse_copy_rows(data, len(schema.columns))
    except pa.ArrowInvalid:
        message = f"Rows of {schema.table} could not be parsed."
    raise PgetlError(ErrorKind.INTERNAL, message, table=str(schema.table))


def _typed(schema: TableSchema, texts: list[pa.Array]) -> pa.RecordBatch:
    try:
        arrays = [decode(column, text) for column, text in zip(schema.columns, texts, strict=True)]
    except PgetlError as error:
        raise PgetlError(error.kind, error.message, remedy=error.remedy, table=str(schema.table)) from None
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(schema))
