"""One transaction of millions of rows, in bounded memory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.comparing import assert_equal
from tests.runs import WITH_SPARK, Runs
from tests.shop import ShopTable

pytestmark = [
    pytest.mark.servers,
    pytest.mark.parametrize("source_server", [16], indirect=True),
    pytest.mark.timeout(1200),
]

_WIDE = ShopTable(
    "public.wide",
    "create table public.wide (id bigint primary key, name text, price numeric(12, 2), moment timestamptz, note text)",
)
_KEYLESS = ShopTable("public.keyless", "create table public.keyless (id bigint, name text)")
_FILE = """
id = "large"
tables = ["public.*"]
[source]
uri = "env:PGETL_SOURCE_URI"
[state]
uri = "env:PGETL_STATE_URI"
[destination]
{destination}
"""
_TRANSACTION = """
insert into public.wide
select n, 'name ' || n, n / 7.0, timestamptz '2024-01-01' + n * interval '1 s', repeat('x', 40)
from generate_series(1, {rows}) n;
update public.wide set price = price + 1 where id % 10 = 0;
delete from public.wide where id % 100 = 0;
insert into public.keyless select n, 'k' from generate_series(1, {rows} / 10) n
"""
_LOOKED_AT = {
    "wide": "count(*), sum(id), sum(price), count(distinct name), sum(length(note))",
    "keyless": "count(*), sum(id), max(name)",
}


@pytest.mark.parametrize(
    "rows", [200_000, pytest.param(1_000_000, marks=pytest.mark.slow), pytest.param(5_000_000, marks=pytest.mark.slow)]
)
def test_into_postgres(databases: Databases, tmp_path: Path, rows: int) -> None:
    runs = _copied(databases, tmp_path, 'type = "postgres"\nuri = "env:PGETL_DESTINATION_URI"')
    _follow(runs, rows, 400_000_000)
    assert_equal(databases, (_WIDE, _KEYLESS))


@pytest.mark.spark
@pytest.mark.parametrize("rows", [100_000, pytest.param(5_000_000, marks=pytest.mark.slow)])
def test_into_a_lake(databases: Databases, tmp_path: Path, rows: int) -> None:
    runs = _copied(databases, tmp_path, f'type = "delta"\nuri = "{tmp_path}/lake"')
    # What is shipped: allocators are told what to keep before anything imports Arrow or delta-rs. A fork is too late.
    runs.program = WITH_SPARK
    _follow(runs, rows, 600_000_000)
    for name, looked_at in _LOOKED_AT.items():
        table = DeltaTable(tmp_path / "lake" / "public" / name)
        (found,) = pa.table(QueryBuilder().register("t", table).execute(f"select {looked_at} from t")).to_pylist()
        assert [tuple(found.values())] == databases.source.execute(f"select {looked_at} from {name}")


def _copied(databases: Databases, folder: Path, destination: str) -> Runs:
    for table in (_WIDE, _KEYLESS):
        databases.source.execute(table.create)
    databases.source.execute("alter table public.keyless replica identity full")
    runs = Runs(databases, folder, _FILE.format(destination=destination))
    assert runs.until_caught_up() == 0, runs.log
    return runs


def _follow(runs: Runs, rows: int, limit: int) -> None:
    runs.source.execute(_TRANSACTION.format(rows=rows))
    run = runs.start("--until", "caught-up")
    assert run.wait(1000) == 0, run.said()
    assert run.peak_memory < limit, f"{run.peak_memory:,} bytes"
