"""The streaming worker holds at most its `memory` and 350 MB, whatever the rows that are changed."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.runs import WITH_SPARK, WITHOUT_SPARK, Runs

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("source_server", [16], indirect=True)]

_MEMORY = 64 << 20
_MOST = _MEMORY + 350_000_000
_FILE = f"""
id = "documents"
tables = ["public.*"]
[source]
uri = "env:PGETL_SOURCE_URI"
[destination]
type = "delta"
uri = "LAKE"
[stream]
memory = "{_MEMORY >> 20}MiB"
"""
# Documents of 90 to 130 KB, of letters that hardly compress, at the cost of a copy each.
_DOCUMENTS = """
    create schema hidden;
    create table hidden.letters as select k, (select string_agg(md5((k * 100003 + g)::text), '')
        from generate_series(1, 8000) g) as letters from generate_series(0, 7) k;
    create function hidden.document(seed bigint) returns text language sql stable as $$
        select substr(letters, 1 + (seed * 7919 % 120000)::int, 90000 + (seed * 37 % 40000)::int)
        from hidden.letters where k = (seed % 8)::int $$;
    create table public.documents (id bigint primary key, document text, n int not null);
    alter table public.documents alter document set storage external
"""


def _copied(databases: Databases, folder: Path, count: int) -> Runs:
    source = databases.source
    source.execute(_DOCUMENTS)
    source.execute(f"insert into documents select g, hidden.document(g), 0 from generate_series(1, {count}) g")
    runs = Runs(databases, folder, _FILE.replace("LAKE", str(folder / "lake")), program=WITHOUT_SPARK)
    assert runs.until_caught_up() == 0, runs.log
    # What is shipped: allocators are told what to keep before anything imports Arrow or delta-rs.
    runs.program = WITH_SPARK
    return runs


def _expect_caught_up_within_bounds(runs: Runs, source: Database, folder: Path) -> list[str]:
    run = runs.start("--until", "caught-up")
    assert run.wait(1000) == 0, run.said()
    looked_at = "sum(id * (n + 1))::bigint, sum(length(document))::bigint"
    files = DeltaTable(folder / "lake" / "public" / "documents").file_uris()
    with duckdb.connect() as connection:
        found = connection.execute(f"select {looked_at} from read_parquet($1)", [files]).fetchall()
    assert found == source.execute(f"select {looked_at} from documents")
    assert run.peak_memory < _MOST, f"{run.peak_memory:,} bytes"
    return run.said(1000).splitlines()


@pytest.mark.parametrize(
    ("count", "rounds"),
    [
        pytest.param(300, 3, id="of 300 documents"),
        pytest.param(1000, 3, id="of 1,000 documents", marks=pytest.mark.slow),
        pytest.param(200, 100, id="2 GB, of 200", marks=pytest.mark.slow),
        pytest.param(10_000, 2, id="2 GB, of 10,000", marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(1200)
def test_documents_are_updated_all_the_time(databases: Databases, tmp_path: Path, count: int, rounds: int) -> None:
    runs = _copied(databases, tmp_path, count)
    for number in range(rounds * 10):
        databases.source.execute(
            f"update documents set document = hidden.document(id + {number}), n = n + 1 where id % 10 = {number % 10}"
        )
    _expect_caught_up_within_bounds(runs, databases.source, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_in_one_large_transaction_one_sees_that_it_goes_on(databases: Databases, tmp_path: Path) -> None:
    runs = _copied(databases, tmp_path, 5000)
    databases.source.execute(
        "update documents set document = hidden.document(id + 1), n = n + 1;"
        "update documents set document = hidden.document(id + 2), n = n + 1"
    )
    said = _expect_caught_up_within_bounds(runs, databases.source, tmp_path)
    told = {int(line.split(" so far")[0].split()[-1].replace(",", "")) for line in said if " so far" in line}
    assert any(0 < changes < 10_000 for changes in told), said


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_documents_are_known_by_other_keys_and_not_sent_again(databases: Databases, tmp_path: Path) -> None:
    runs = _copied(databases, tmp_path, 10_000)
    databases.source.execute("update documents set id = -id")
    _expect_caught_up_within_bounds(runs, databases.source, tmp_path)
