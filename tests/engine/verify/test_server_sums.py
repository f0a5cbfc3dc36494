"""Sums that servers compute: whatever differs is seen, without a row being sent; what is not known is not concluded."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from airflow_provider_pgetl.engine.config.spec import TableSpec, TransformSpec
from airflow_provider_pgetl.engine.postgres import copy_format
from airflow_provider_pgetl.engine.postgres.copy_format import sums_query
from airflow_provider_pgetl.engine.verify import server_sums, source_rows, verifying
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.engine.verify.replica import Replica, arrives, between_snapshots

pytestmark = [pytest.mark.servers, pytest.mark.parametrize("source_server", [16, 18], indirect=True)]


@pytest.fixture
def replica(databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replica:
    made = Replica(databases, "postgres", tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    made.source(
        "create table t (id int primary key, note text, n numeric)",
        "insert into t select i, 'note', 1.0 from generate_series(1, 300) i",
    )
    made.catch_up()
    return made


@pytest.fixture
def no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise AssertionError("rows were read")

    monkeypatch.setattr(verifying, "_differences", read)


def sums(databases: Databases, *rows: str) -> tuple[str, ...]:
    query = sums_query(["a"], f"from (values {', '.join(f'({row})' for row in rows)}) v(a)")
    with databases.source.connect() as session, session.cursor().copy(query) as copied:
        return tuple(b"".join(bytes(one) for one in copied).decode().strip().split(","))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("0.0::float8", "'-0.0'::float8"),
        ("1.0::numeric", "1.00::numeric"),
        ("'text'", "'text '"),
        ("'a'::char(5)", "'a'::char(6)"),
        ("''", "null"),
        ("'null'", "null"),
        ("'{a,b}'::text[]", "'{b,a}'::text[]"),
        ("'{null}'::text[]", "'{\"null\"}'::text[]"),
        (r"'\x00ff'::bytea", r"'\x00fe'::bytea"),
        ("'a,b'", "'a\"b'"),
        ("'infinity'::timestamptz", "'-infinity'::timestamptz"),
        ("""'{"a": 1}'::json""", """'{"a":1}'::json"""),
        ("0.1::float8 + 0.2", "0.3::float8"),
    ],
)
def test_values_that_differ_have_other_sums(databases: Databases, one: str, other: str) -> None:
    assert sums(databases, one) == sums(databases, one)
    assert sums(databases, one)[2:] != sums(databases, other)[2:]
    assert sums(databases, one, other) == sums(databases, other, one)
    assert sums(databases, one, one) != sums(databases, one)


def test_equal_tables_are_not_sent(replica: Replica, no_rows: None) -> None:
    found = replica.verify()
    assert (found.verdict, found.rows, found.skipped) == ("equal", 300, 0)


def test_rows_changed_meanwhile_are_subtracted(
    replica: Replica, no_rows: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a key that was changed several times, and one that has moved. Nothing is streamed, so they stay open."""
    monkeypatch.setattr(source_rows, "_KEYS_AT_ONCE", 3)
    replica.source(
        "update t set note = 'a' where id <= 20",
        "update t set note = 'b' where id <= 20",
        "update t set id = id + 1000 where id = 30",
        "delete from t where id = 40",
        "insert into t values (2000, 'new', 1)",
    )
    found = replica.verify()
    assert (found.verdict, found.rows, found.skipped) == ("equal", 300 - 22, 24)


def test_rows_changed_meanwhile_are_compared_after_all(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    def changes() -> None:
        replica.source("update t set note = 'newer' where id <= 20")
        arrives(replica)()

    between_snapshots(monkeypatch, changes)
    with replica.streamed():
        found = replica.verify()
    assert (found.verdict, found.rows, found.skipped, found.rounds) == ("equal", 300, 0, 2)


def test_of_many_changed_rows_nothing_is_summed(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_sums, "_KEYS_AT_MOST", 5)
    replica.source("update t set note = 'a' where id <= 20")
    found = replica.verify()
    assert (found.verdict, found.rows, found.skipped) == ("equal", 280, 20)


def test_where_a_server_cannot_sum_rows_are_read(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a row whose text is too long for one value; at the source, then in the destination."""
    for module in ("verify.source_rows", "destinations.postgres.reading"):
        with monkeypatch.context() as patched:
            failing = "COPY (SELECT 1 / (count(*) - count(*)) FROM pg_class) TO STDOUT (FORMAT csv, FORCE_QUOTE *)"
            patched.setattr(f"airflow_provider_pgetl.engine.{module}.sums_query", lambda *_, sql=failing: sql)
            found = replica.verify()
        assert (found.verdict, found.rows) == ("equal", 300)


def test_another_encoding_proves_nothing(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = verifying._differences

    def differences(*arguments: object) -> object:
        read.append(1)
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(verifying, "_differences", differences)
    assert (replica.verify().verdict, read) == ("equal", [])

    def elsewhere(values: list[str], source: str) -> str:
        return copy_format.sums_query(values, source).replace("getdatabaseencoding()", "'LATIN1'::name")

    monkeypatch.setattr(source_rows, "sums_query", elsewhere)
    assert (replica.verify().verdict, read) == ("equal", [1])


def test_of_partitions_and_a_row_filter_the_same_rows_are_summed(replica: Replica, no_rows: None) -> None:
    replica.databases.source.execute("drop table t")
    replica.tables = (TableSpec("public.p", columns=("id", "note"), where="id > 100"),)
    replica.source(
        "create table p (id int primary key, secret text, note text) partition by range (id)",
        "create table p1 partition of p for values from (0) to (150)",
        "create table p2 partition of p for values from (150) to (1000)",
        "insert into p select i, 'hidden', 'n' || i from generate_series(1, 300) i",
    )
    with replica.opened() as pipeline:
        pipeline.run(until_caught_up=True, stop=threading.Event())
    replica.source("update p set note = 'x' where id between 90 and 110")
    found = replica.verify()
    assert (found.verdict, found.rows, found.skipped) == ("equal", 190, 10)


def test_rows_that_have_left_the_row_filter_are_no_rows(replica: Replica, no_rows: None) -> None:
    """They are at the source, and the stream names their keys."""
    replica.databases.source.execute("drop table t")
    replica.tables = (TableSpec("public.p", where="note <> 'out'"),)
    replica.source(
        "create table p (id int primary key, note text)",
        "alter table p replica identity full",
        "insert into p select i, 'in' from generate_series(1, 300) i",
    )
    with replica.opened() as pipeline:
        pipeline.run(until_caught_up=True, stop=threading.Event())
    replica.source("update p set note = 'out' where id <= 10")
    found = replica.verify()
    assert (found.verdict, found.rows, found.skipped) == ("equal", 290, 10)


def test_values_that_were_not_transformed_are_no_proof(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums over both tables are equal, although they must not be."""
    replica.databases.source.execute("drop table t")
    replica.databases.destination.execute("drop table t")
    replica.tables = (TableSpec("public.u"),)
    replica.rules = (TransformSpec("note", "mask", "public.u"),)
    replica.source(
        "create table u (id int primary key, note text)",
        "insert into u select i, 'secret' from generate_series(1, 30) i",
    )
    with replica.opened() as pipeline:
        pipeline.run(until_caught_up=True, stop=threading.Event())
    assert (replica.verify().verdict, replica.verify().rows) == ("equal", 30)
    replica.databases.destination.execute("update u set note = 'secret'")
    found = replica.verify()
    assert (found.verdict, found.changed) == ("different", 30)
