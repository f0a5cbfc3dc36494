"""What the demo shows."""

import io
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from rich.console import Console

from airflow_provider_pgetl.demo.asking import ShownAnswer, ask_lake, ask_postgres
from airflow_provider_pgetl.demo.observing import Lines, Observation, TableObservation, answer_as_text, draw
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases

ORDERS = TableName("public", "orders")
READY = TableObservation(ORDERS, "Ready", 60_000, 59_990)


def _drawn(look: Observation) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(draw(look, 1234))
    return console.file.getvalue()


def test_the_picture_holds_tables_phases_rows_and_lag() -> None:
    picture = _drawn(Observation((READY,), Boundary(5000), Boundary(904)))
    assert all(word in picture for word in ("public.orders", "Ready", "60,000", "59,990", "1,234", "lag 4.0 KiB"))


def test_what_is_not_known_yet_is_a_dash() -> None:
    picture = _drawn(Observation((TableObservation(ORDERS, None, 5, None),)))
    assert "–" in picture
    assert "lag –" in picture


def test_an_errored_table_says_why() -> None:
    assert "a check failed" in _drawn(Observation((TableObservation(ORDERS, "Errored", 5, 5, "a check failed"),)))


def test_lines_tell_each_phase_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    for _ in range(3):
        lines.show(Observation((READY,)), 1)
    assert capsys.readouterr().out.count("public.orders: Ready") == 1


def test_all_ready_is_ready_and_one_that_is_not_is_not() -> None:
    other = TableObservation(TableName("public", "payments"), "SyncDone", 1, 1)
    assert Observation((READY,)).ready
    assert not Observation((READY, other)).ready


def test_an_answer_is_a_table_to_read() -> None:
    answer = ShownAnswer(["day", "revenue"], [(date(2026, 1, 2), Decimal("1234.50")), (date(2026, 1, 1), 7)])
    assert answer_as_text(answer).splitlines() == [
        "DAY           REVENUE",
        "2026-01-02   1,234.50",
        "2026-01-01          7",
    ]


def test_an_end_is_reached_when_everything_before_it_is_durable() -> None:
    look = Observation((READY,), Boundary(200), Boundary(100))
    assert look.has_reached(Boundary(100))
    assert not look.has_reached(Boundary(101))
    assert not look.has_reached(None)
    assert not Observation((READY,)).has_reached(Boundary(1))


# -- the demo's question has one answer, whichever replica is asked ----------------------------------------------------


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
