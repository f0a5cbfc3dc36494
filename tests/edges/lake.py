"""Tables of a lake compared with their source: as their columns are held there, whatever Postgres calls the types."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.source.catalog import PublishedTable, read_tables
from airflow_provider_pgetl.engine.source.connecting import Connection, connect
from tests.edges.pipeline import PipelineOfEdges
from tests.engine.destinations.delta.test_end_to_end import source_rows, tuples

_SHOWN = 5


def lake_rows(pipeline: PipelineOfEdges, name: str, columns: Sequence[str]) -> Counter[Any]:
    table = pa.table(DeltaTable(str(pipeline.lake_uri / "edges" / name)).scan())
    return Counter(tuples(table.select(list(columns))))


def lake_differences(pipeline: PipelineOfEdges, names: Sequence[str]) -> dict[str, str]:
    """One text for each of these tables that is not the same in the lake, or that is not published at all: a worker
    may not have seen that yet."""
    publications = ["pgetl_edges", *(["pgetl_edges_inserts"] if pipeline.managed else [])]
    with closing(connect(pipeline.source.uri, "test")) as connection:
        differing: dict[str, str] = {}
        for table in _published(connection, publications, names, differing):
            source = source_rows(connection, table)
            try:
                lake = lake_rows(pipeline, table.table.name, table.schema.names)
            except KeyError as lacking:  # a column that came since: it is copied again, or soon will be
                differing[table.table.name] = str(lacking)
                continue
            if text := _difference(source, lake, table):
                differing[table.table.name] = text
    return differing


def _published(
    connection: Connection, publications: Sequence[str], names: Sequence[str], differing: dict[str, str]
) -> Iterator[PublishedTable]:
    for name in names:
        try:
            yield from read_tables(connection, publications, [TableName("edges", name)])
        except PgetlError as error:
            differing[name] = error.message


def _difference(source: Counter[Any], lake: Counter[Any], table: PublishedTable) -> str | None:
    if source == lake:
        return None
    lines = [f"{table.table}: {source.total()} rows at the source, {lake.total()} in the lake"]
    for where, rows in (("only at the source", source - lake), ("only in the lake", lake - source)):
        lines += [f"  {rows.total()} {where}", *(f"    {row!r:.300}" for row in list(rows)[:_SHOWN])]
    return "\n".join(lines)
