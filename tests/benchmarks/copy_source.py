"""The source's side of a copy: rows as typed Arrow columns in Parquet, by our reader of COPY's text and by ADBC.

    python -m tests.benchmarks.copy_source [--rows 1000000] [--runs 3]

Both read the same ranges in one session, and write by the same writer. Measured, for a million rows of ten columns:
ours 1.5 s, of which 0.72 s are our CPU; ADBC 1.6 s and 0.92 s; the rest of the time both wait for the server. So there
is one reader, which treats every type as the change path does; ADBC hands out numerics and all that it does not know
as opaque values, infinite dates as the ends of their type.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa

from airflow_provider_pgetl.engine.config.spec import CopySpec
from airflow_provider_pgetl.engine.copy.rows import text_batches
from airflow_provider_pgetl.engine.destinations.delta.files.data_files import FilesWriter, new_name
from airflow_provider_pgetl.engine.destinations.delta.log.storage import TableFolder
from airflow_provider_pgetl.engine.destinations.delta.options import DeltaOptions
from airflow_provider_pgetl.engine.destinations.delta.shape import DeltaShape
from airflow_provider_pgetl.engine.source.catalog import read_tables
from airflow_provider_pgetl.engine.source.connecting import connect
from airflow_provider_pgetl.engine.source.range_reading import copy_blocks, plan_ranges, range_query
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server
from tests.benchmarks.copy import SERVER, TABLE, _fill

Tables = Iterable[pa.Table]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.copy_source")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    with Server.start(16, SERVER) as server, tempfile.TemporaryDirectory() as folder:
        source = server.create_database("shop")
        _fill(source, given.rows)
        _compare(source, TableFolder(folder), given.rows, given.runs)


def _compare(source: Database, place: TableFolder, rows: int, runs: int) -> None:
    with connect(source.uri, "bench") as connection, adbc.connect(source.uri) as other, other.cursor() as cursor:
        (published,) = read_tables(connection, ["p"], [TABLE])
        shape = DeltaShape(published.schema, DeltaOptions())
        queries = [
            range_query(published.schema, one, "csv") for one in plan_ranges(published.leaves, CopySpec().range_bytes)
        ]

        def by_copy(query: str) -> Tables:
            for batch in text_batches(published.schema, copy_blocks(connection, query)):
                yield shape.decoded(batch.columns)

        def by_adbc(query: str) -> Tables:
            cursor.execute(re.sub(r"(?s)^COPY \((.*)\) TO STDOUT.*", r"\1", query))
            for batch in cursor.fetch_record_batch():
                arrays = [_plain(array, field.type) for array, field in zip(batch.columns, shape.rows, strict=True)]
                yield pa.Table.from_arrays(arrays, schema=shape.rows)

        for _ in range(runs):
            for name, read in (("ours, by COPY", by_copy), ("ADBC", by_adbc)):
                begun, cpu = time.perf_counter(), time.process_time()
                found = sum(_write(place, shape, read, query) for query in queries)
                assert found == rows, found
                wall, used = time.perf_counter() - begun, time.process_time() - cpu
                print(f"{name:14} {wall:5.2f} s, {used:5.2f} s CPU, {rows / wall / 1000:5.0f} k rows/s", flush=True)


def _write(place: TableFolder, shape: DeltaShape, read: Callable[[str], Tables], query: str) -> int:
    writer = FilesWriter(place, shape.layout, new_name("part"), sorts=True)
    for table in read(query):
        writer.write(table)
    files = writer.close()
    for file in files:
        Path(str(place.local), file.path).unlink()
    return sum(file.rows for file in files)


def _plain(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    held = array.storage if isinstance(array, pa.ExtensionArray) else array
    return held if held.type == wanted else held.cast(wanted)


if __name__ == "__main__":
    main()
