"""Copied rows as typed record batches, for destinations that do not take the source's COPY stream itself.

The source writes CSV with every value quoted: then NULL (nothing) and the empty string (``""``) differ, and each value
is what its type's output function says, exactly as pgoutput sends it. (A cast to text is not that: it shortens
char(n), spells booleans out and adds masks to inet.) Arrow parses it, whole blocks at once; `values` gives it types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.csv as csv

from airflow_provider_pgetl.engine.errors import PgetlError
from airflow_provider_pgetl.engine.tables import TableSchema
from airflow_provider_pgetl.engine.values import arrow_type, decode

BATCH_BYTES = 16 << 20


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
    for data in _gathered(blocks, batch_bytes):
        yield _typed(schema, parse_copy_rows(data, len(schema.columns)))


def text_batches(
    schema: TableSchema, blocks: Iterable[bytes], batch_bytes: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """The same rows, each value as the text that it came as, in Arrow binary."""
    for data in _gathered(blocks, batch_bytes):
        yield pa.RecordBatch.from_arrays(parse_copy_rows(data, len(schema.columns)), names=list(schema.names))


def parse_copy_rows(data: bytes, width: int) -> list[pa.Array]:
    """The columns of these rows as Arrow binary, null where nothing stood."""
    names = [str(index) for index in range(width)]
    table = csv.read_csv(
        pa.BufferReader(data),
        csv.ReadOptions(column_names=names, block_size=len(data) + 1, use_threads=False),
        csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        csv.ConvertOptions(
            check_utf8=False,
            column_types=dict.fromkeys(names, pa.binary()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return [column.combine_chunks() for column in table.columns]


def _gathered(blocks: Iterable[bytes], size: int) -> Iterator[bytes]:
    gathered: list[bytes] = []
    held = 0
    for block in blocks:
        gathered.append(block)
        held += len(block)
        if held >= size:
            yield b"".join(gathered)
            gathered, held = [], 0
    if held:
        yield b"".join(gathered)


def _typed(schema: TableSchema, texts: list[pa.Array]) -> pa.RecordBatch:
    try:
        arrays = [decode(column, text) for column, text in zip(schema.columns, texts, strict=True)]
    except PgetlError as error:
        raise PgetlError(error.kind, error.message, remedy=error.remedy, table=str(schema.table)) from None
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(schema))
