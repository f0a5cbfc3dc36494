"""Whoever opens Delta tables, each asked in the same way: what each reads of a table, or how it refuses."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from tests.third_party.delta_spark import DeltaSpark

Rows = list[tuple[Any, ...]]
_ALLOCATOR = "_RJEM_MALLOC_CONF"


@dataclass(frozen=True, slots=True)
class Reader:
    """`knows_vectors`: reads tables with deletion vectors. Who does not, refuses to read a table that demands it."""

    name: str
    read: Callable[[Path], pa.Table]
    knows_vectors: bool = True

    def rows(self, table: Path) -> Rows:
        """Sorted; a row has the columns in the table's order."""
        return sorted((tuple(row.values()) for row in self.read(table).to_pylist()), key=repr)


def readers(spark: DeltaSpark | None = None) -> list[Reader]:
    """All that are installed; Delta-Spark if there is a session of it."""
    found = [
        Reader("duckdb", by_duckdb),
        Reader("polars", by_polars),
        Reader("delta-rs scan", lambda table: pa.table(DeltaTable(table).scan())),
        Reader("delta-rs query", by_query),
        Reader("delta-rs dataset", lambda table: DeltaTable(table).to_pyarrow_table(), knows_vectors=False),
    ]
    return found if spark is None else [Reader("delta-spark", spark.read), *found]


def knowing_vectors(spark: DeltaSpark | None = None) -> list[Reader]:
    return [reader for reader in readers(spark) if reader.knows_vectors]


def by_duckdb(table: Path) -> pa.Table:
    """DuckDB's own extension, from its wheel: nothing is downloaded."""
    with duckdb_with_delta().cursor() as connection:
        return connection.execute("select * from delta_scan($1)", [str(table)]).to_arrow_table()


@cache
def duckdb_with_delta() -> duckdb.DuckDBPyConnection:
    """One for all of a process: to load the extension takes a hundred times as long as to read a small table."""
    connection = duckdb.connect()
    connection.execute(f"load '{duckdb_extension('delta')}'")
    connection.execute("set global timezone = 'UTC'")
    return connection


def by_polars(table: Path) -> pa.Table:
    """Polars settles its allocator in the environment, which processes started later are not to inherit."""
    before = os.environ.get(_ALLOCATOR)
    try:
        import polars as pl

        return pl.scan_delta(str(table)).collect().to_arrow()
    finally:
        os.environ.pop(_ALLOCATOR, None)
        if before is not None:
            os.environ[_ALLOCATOR] = before


def by_query(table: Path) -> pa.Table:
    return pa.table(QueryBuilder().register("t", DeltaTable(table)).execute("select * from t"))


def duckdb_extension(name: str) -> Path:
    """The file of an extension that has come as the wheel `duckdb-extension-…` of DuckDB's version."""
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    places = [] if spec is None else spec.submodule_search_locations or []
    found = next((file for place in places for file in Path(place).rglob(f"{name}.duckdb_extension")), None)
    assert found is not None, f"the wheel duckdb-extension-{name.replace('_', '-')} is not installed"
    return found
