"""The demo's question has one answer, whichever replica is asked."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_provider_pgetl.demo.asking import ask_lake, ask_postgres
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases


@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_a_lake_answers_what_postgres_answers(databases: Databases, tmp_path: Path) -> None:
    source = databases.source
    source.execute("create table orders (id int, customer_id int)")
    source.execute("create table payments (order_id int, amount numeric(12, 2), method text, paid timestamptz)")
    source.execute("insert into orders select n, n % 7 from generate_series(1, 100) n")
    paid = "timestamptz '2024-01-01 23:50+00' + n * interval '1 h'"
    source.execute(f"insert into payments select n, n / 4.0, 'card', {paid} from generate_series(1, 100) n")
    with source.connect() as session:
        for name in ("orders", "payments"):
            rows = session.execute(f"select * from {name}".encode())
            columns = [column.name for column in rows.description]
            write_deltalake(
                tmp_path / name, pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in rows])
            )
        expected = ask_postgres(session)
    found = ask_lake({name: tmp_path / name for name in ("orders", "payments")})
    assert (found.columns, found.rows) == (expected.columns, expected.rows)
    assert len(found.rows) == 5
