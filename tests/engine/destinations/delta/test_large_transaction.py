"""One transaction of millions of rows into Delta tables, in bounded memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.runs import WITH_SPARK, Runs

_LIMIT = 600_000_000
_FILE = """
id = "large"
tables = ["public.*"]
[source]
uri = "env:PGETL_SOURCE_URI"
[destination]
type = "delta"
uri = "LAKE"
"""
_LOOKED_AT = {
    "wide": "count(*), sum(id), sum(price), count(distinct name), extract(epoch from max(moment))::bigint,"
    " sum(length(note))",
    "keyless": "count(*), sum(id), max(name)",
}


@pytest.mark.spark
@pytest.mark.parametrize("source_server", [16], indirect=True)
@pytest.mark.parametrize("rows", [100_000, pytest.param(5_000_000, marks=pytest.mark.slow)], ids=["100k", "5M"])
@pytest.mark.timeout(1200)
def test_one_large_transaction(databases: Databases, tmp_path: Path, rows: int) -> None:
    source = databases.source
    source.execute(
        """create table wide (id bigint primary key, name text, price numeric(12, 2), moment timestamptz, note text);
           create table keyless (id bigint, name text); alter table keyless replica identity full"""
    )
    # What is shipped: allocators are told what to keep before anything imports Arrow or delta-rs. A fork is too late.
    runs = Runs(databases, tmp_path, _FILE.replace("LAKE", str(tmp_path / "lake")), program=WITH_SPARK)
    assert runs.until_caught_up() == 0, runs.log
    source.execute(
        f"""insert into wide
            select n, 'name ' || n, n / 7.0, timestamptz '2024-01-01' + n * interval '1 s', repeat('x', 40)
            from generate_series(1, {rows}) n;
            update wide set price = price + 1 where id % 10 = 0;
            delete from wide where id % 100 = 0;
            insert into keyless select n, 'k' from generate_series(1, {rows // 10}) n"""
    )
    run = runs.start("--until", "caught-up")
    assert run.wait(1000) == 0, run.said()
    for table, looked_at in _LOOKED_AT.items():
        assert _by_duckdb(tmp_path / "lake" / "public" / table, looked_at) == source.execute(
            f"select {looked_at} from {table}"
        )
    assert run.peak_memory < _LIMIT, f"{run.peak_memory:,} bytes"


def _by_duckdb(place: Path, looked_at: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        files = DeltaTable(place).file_uris()
        return connection.execute(f"select {looked_at} from read_parquet($1)", [files]).fetchall()
