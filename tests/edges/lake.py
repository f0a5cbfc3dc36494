"""Tables of a lake compared with their source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing

import pyarrow as pa
from deltalake import DeltaTable

from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.source.catalog import read_tables
from airflow_provider_pgetl.engine.source.connecting import Connection, connect
from tests.comparing import Rows, lake_difference, tuples
from tests.edges.pipeline import PipelineOfEdges


def lake_rows(pipeline: PipelineOfEdges, name: str, columns: Sequence[str]) -> Rows:
    table = pa.table(DeltaTable(str(pipeline.lake_uri / "edges" / name)).scan())
    return Counter(tuples(table.select(list(columns))))


def lake_differences(pipeline: PipelineOfEdges, names: Sequence[str]) -> dict[str, str]:
    """One text for each of these tables that is not the same in the lake, or that is not published at all: a worker
    may not have seen that yet."""
    with closing(connect(pipeline.source.uri, "test")) as connection:
        return {name: text for name in names if (text := _difference(connection, pipeline, name))}


def _difference(connection: Connection, pipeline: PipelineOfEdges, name: str) -> str | None:
    publications = ["pgetl_edges", *(["pgetl_edges_inserts"] if pipeline.managed else [])]
    try:
        for table in read_tables(connection, publications, [TableName("edges", name)]):
            return lake_difference(connection, table, lake_rows(pipeline, name, table.schema.names))
    except PgetlError as error:
        return error.message
    except KeyError as lacking:  # a column that came since: it is copied again, or soon will be
        return str(lacking)
    return None
