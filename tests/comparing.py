"""Source and destination compared, value by value; the destination may be a lake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from airflow_provider_pgetl.engine.copy.rows import text_batches
from airflow_provider_pgetl.engine.destinations.delta.options import DeltaOptions
from airflow_provider_pgetl.engine.destinations.delta.shape import DeltaShape
from airflow_provider_pgetl.engine.source.catalog import PublishedTable
from airflow_provider_pgetl.engine.source.connecting import Connection
from airflow_provider_pgetl.engine.source.range_reading import copy_blocks
from airflow_provider_pgetl.testing import comparing
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.shop import ShopTable

Rows = Counter[tuple[Any, ...]]


def assert_equal(databases: Databases, tables: Iterable[ShopTable]) -> None:
    """Fails with the first rows that differ, of every table that does."""
    found = differences(databases, tables)
    assert not found, "source and destination differ\n" + "\n".join(found)


def differences(databases: Databases, tables: Iterable[ShopTable]) -> list[str]:
    """One text for each table that is not the same on both sides."""
    with databases.source.connect() as source, databases.destination.connect() as destination:
        return comparing.differences(source, destination, [table.selection for table in tables])


# -- a lake: as columns are held there, whatever Postgres calls the types ----------------------------------------------


def lake_difference(connection: Connection, published: PublishedTable, lake: Rows) -> str | None:
    source = source_rows(connection, published)
    if source == lake:
        return None
    return comparing.explain(published.table, *(Counter(map(repr, rows.elements())) for rows in (source, lake)))


def source_rows(connection: Connection, published: PublishedTable) -> Rows:
    columns = ", ".join(column.sql for column in published.schema.columns)
    condition = f" where {published.row_filter}" if published.row_filter else ""
    query = f"copy (select {columns} from {published.table.sql}{condition}) to stdout (format csv, force_quote *)"
    shape = DeltaShape(published.schema, DeltaOptions(out_of_range="text"))
    batches = text_batches(published.schema, copy_blocks(connection, query))
    return Counter(row for batch in batches for row in tuples(shape.decoded(batch.columns)))


def tuples(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    return (hashable(tuple(row.values())) for row in rows.to_pylist())


def hashable(row: Any) -> Any:
    """A row, or what is in it, as something that can be counted; NaN is itself."""
    if isinstance(row, float) and row != row:
        return "NaN"
    return tuple(map(hashable, row)) if isinstance(row, list | tuple) else row
