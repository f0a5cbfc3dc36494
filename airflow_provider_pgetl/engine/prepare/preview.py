"""Shows what rules make of rows, before anything is replicated: reads some rows of the source, and writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.model.errors import ErrorData, ErrorKind, PgetlError, refuse
from airflow_provider_pgetl.engine.model.previews import ColumnPreview, TablePreview, Text
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema, written
from airflow_provider_pgetl.engine.postgres.copy_format import CSV_OPTIONS, text_tables
from airflow_provider_pgetl.engine.source import preflight
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.range_reading import copy_blocks, imported_snapshot


def preview(context: PipelineContext, wanted: TableName | None, rows: int) -> list[TablePreview]:
    """Returns up to `rows` rows of each declared table with rules, or of the one that is wanted."""
    with context.connect("preview") as connection:
        survey = preflight.survey(connection, context.spec)
        refuse(survey.matching.findings)
        schemas = preflight.declared_schemas(connection, context.spec, survey.candidates)
        if wanted is not None and wanted not in schemas:
            message = f"{written(wanted)} is no table of the pipeline."
            raise PgetlError(ErrorKind.USAGE, message, remedy="Declare it, or name another one.")
        chosen = {table: schema for table, schema in schemas.items() if wanted in (None, table)}
        filters = {one.table: one.match.spec.where for one in survey.candidates}
        found = [_preview(context, connection, schema, filters[table], rows) for table, schema in chosen.items()]
    return [one for one in found if one.transformed or one.failure is not None or wanted is not None]


def _preview(
    context: PipelineContext, connection: Connection, schema: TableSchema, where: str | None, rows: int
) -> TablePreview:
    try:
        transform = None if context.transforms is None else context.transforms.of(schema.table, schema)
        before = _read(connection, schema, where, rows)
        if transform is None:
            return TablePreview(schema.table, _columns(schema, before, before, {}))
        return TablePreview(schema.table, _columns(schema, before, transform.arrays(before), transform.uses))
    except PgetlError as error:
        if error.kind is not ErrorKind.TRANSFORM:
            raise
        return TablePreview(schema.table, failure=ErrorData.of(error))


def _columns(
    schema: TableSchema, before: Sequence[pa.Array], after: Sequence[pa.Array], uses: Mapping[str, str]
) -> tuple[ColumnPreview, ...]:
    return tuple(
        ColumnPreview(column.name, column.sql_type, uses.get(column.name), _texts(there), _texts(here))
        for column, there, here in zip(schema.columns, before, after, strict=True)
    )


def _texts(values: pa.Array) -> list[Text]:
    return [None if value is None else value.decode(errors="replace") for value in values.to_pylist()]


def _read(connection: Connection, schema: TableSchema, where: str | None, rows: int) -> list[pa.Array]:
    columns = ", ".join(column.sql for column in schema.columns)
    condition = f" WHERE ({where})" if where else ""
    query = f"COPY (SELECT {columns} FROM {schema.table.sql}{condition} LIMIT {rows}) TO STDOUT ({CSV_OPTIONS})"
    with imported_snapshot(connection, None):
        found = list(text_tables(schema.names, copy_blocks(connection, query, str(schema.table))))
    if not found:
        return [pa.array([], pa.binary()) for _ in schema.columns]
    return [column.combine_chunks() for column in pa.concat_tables(found).columns]
