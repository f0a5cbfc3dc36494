"""One transaction of millions of rows, in bounded memory."""

from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.comparing import assert_equal
from tests.runs import Runs
from tests.shop import ShopTable

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("source_server", [16], indirect=True)]

_LIMIT = 400_000_000
_WIDE = ShopTable(
    "public.wide",
    "create table public.wide (id bigint primary key, name text, price numeric, at timestamptz, note text)",
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
type = "postgres"
uri = "env:PGETL_DESTINATION_URI"
"""


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param(200_000, id="200k"),
        pytest.param(1_000_000, id="1M", marks=pytest.mark.slow),
        pytest.param(5_000_000, id="5M", marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(1200)
def test_one_large_transaction(databases: Databases, tmp_path: Path, rows: int) -> None:
    for table in (_WIDE, _KEYLESS):
        databases.source.execute(table.create)
    databases.source.execute("alter table public.keyless replica identity full")
    runs = Runs(databases, tmp_path, _FILE)
    assert runs.until_caught_up() == 0, runs.log
    databases.source.execute(
        f"""insert into public.wide
            select n, 'name ' || n, n / 7.0, timestamptz '2024-01-01' + n * interval '1 s', repeat('x', 40)
            from generate_series(1, {rows}) n;
            update public.wide set price = price + 1 where id % 10 = 0;
            delete from public.wide where id % 100 = 0;
            insert into public.keyless select n, 'k' from generate_series(1, {rows // 10}) n"""
    )
    run = runs.start("--until", "caught-up")
    assert run.wait(1000) == 0, run.said()
    assert_equal(databases, (_WIDE, _KEYLESS))
    assert run.peak_memory < _LIMIT, f"{run.peak_memory:,} bytes"
