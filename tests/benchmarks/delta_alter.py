"""What an ALTER of the source costs in a large Delta table, beside copying the table again.

    python -m tests.benchmarks.delta_alter [--millions 4]

Seconds, and the files that were replaced, for a table of the given rows: a column that is NULL in existing rows, one
with a constant default, a rename, and a dropped column; and the seconds that writing all of its rows takes, which a
copy does at least.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from deltalake import DeltaTable

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.destinations.protocol import SchemaChange
from airflow_provider_pgetl.engine.model.tables import Column, TableSchema
from airflow_provider_pgetl.testing.builders import INT8
from tests.benchmarks.delta_updates import copied_lake, schema_of

_EPOCH = 1


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.delta_alter")
    parser.add_argument("--millions", type=int, default=4)
    rows = parser.parse_args().millions * 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        lake = copied_lake(Path(folder) / "lake", "bigint", rows)
        copied = time.perf_counter() - began
        print(f"{rows:,} rows in {_files(lake)} files, written in {copied:.1f} s")
        for name, before, after, dropped in _changes():
            own = lake.with_name("own")
            shutil.copytree(lake, own)
            _told(own, name, SchemaChange(Target("bench", after, 1), (before, after), dropped), copied)
            shutil.rmtree(own)


def _changes() -> Iterator[tuple[str, TableSchema, TableSchema, tuple[str, ...]]]:
    columns = tuple(replace(one, number=number) for number, one in enumerate(schema_of("bigint").columns, 1))
    schema = replace(schema_of("bigint"), columns=columns)
    key, kind, name = columns
    more = Column("more", INT8, "bigint", number=4)
    yield "ADD COLUMN", schema, replace(schema, columns=(*columns, more)), ()
    yield "ADD COLUMN … DEFAULT 7", schema, replace(schema, columns=(*columns, replace(more, missing="7"))), ()
    yield "RENAME COLUMN", schema, replace(schema, columns=(key, kind, replace(name, name="called"))), ()
    yield "DROP COLUMN, kept", schema, replace(schema, columns=(key, kind)), ()
    yield "DROP COLUMN, dropped", schema, replace(schema, columns=(key, kind)), ("name",)


def _told(lake: Path, name: str, change: SchemaChange, copied: float) -> None:
    destination = DeltaDestination(str(lake), "bench")
    destination.claim("bench", _EPOCH)
    before = set(_table(lake).file_uris())
    began = time.perf_counter()
    destination.change_schema(change, _EPOCH)
    seconds = time.perf_counter() - began
    replaced = len(before - set(_table(lake).file_uris()))
    print(
        f"{name:24} {seconds:8.2f} s  {replaced:4} files replaced  {copied / seconds:8.0f} times as fast as writing it"
    )


def _table(lake: Path) -> DeltaTable:
    return DeltaTable(lake / "public" / "items")


def _files(lake: Path) -> int:
    return len(_table(lake).file_uris())


if __name__ == "__main__":
    main()
