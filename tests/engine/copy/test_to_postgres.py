"""Copies from Postgres to Postgres: every value, whatever the types, names and interruptions."""

import threading

import pytest

from airflow_provider_pgetl.engine.config.spec import DestinationSpec
from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.engine.model.phases import RolledBack
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.engine.copy.copies import BIG, DESTINATION, SMALL, Copies, public
from tests.engine.copy.meddling import Meddling

pytestmark = pytest.mark.parametrize("destination_server", [18], indirect=True, ids=["to pg18"])


@pytest.fixture
def to_postgres(copies: Copies) -> Copies:
    copies.destination = DestinationSpec("postgres", uri=f"env:{DESTINATION}")
    return copies


def content(database: Database, table: TableName) -> list[str]:
    """Every row as text, in an order that does not depend on where it lies."""
    with database.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        rows = connection.execute(f"select t::text from {table.sql} t order by 1".encode()).fetchall()
    return [text for (text,) in rows]


def assert_same(databases: Databases, *tables: TableName) -> None:
    for table in tables:
        assert content(databases.destination, table) == content(databases.source, table), table


def fill(source: Database) -> None:
    source.execute("create table big (id int primary key, note text, at timestamptz, amount numeric(12,2))")
    source.execute(
        "insert into big select g, repeat('x', 80), '2020-01-01'::timestamptz + g * interval '1 min', g / 7.0"
        " from generate_series(1, 5000) g"
    )
    source.execute("create table small (id int primary key)")
    source.execute("insert into small values (1), (2)")


AWKWARD = [
    "create table empty (id int primary key, v text)",
    "create table keyless (a int, b text)",
    "alter table keyless replica identity full",
    "insert into keyless values (1, 'x'), (1, 'x'), (null, null)",
    'create schema "Weird ""Schema"""',
    'create table "Weird ""Schema"""."select" ("from" int primary key, "Ü ""q""" text, "a.b" text)',
    'insert into "Weird ""Schema"""."select"' + r""" values (1, E'tab\tnew\nline\\back "quoted"', '')""",
    "create table part (id int, kind text, primary key (id, kind)) partition by list (kind)",
    "create table part_a partition of part for values in ('a')",
    "create table part_rest partition of part default",
    "insert into part select g, chr(97 + g % 3) from generate_series(1, 3000) g",
    "create type mood as enum ('sad', 'ok', 'happy')",
    (
        "create table typed (id int primary key, m mood, ms mood[], j jsonb, n numeric, d date, b bytea, ip inet,"
        " c char(5), bits bit varying, i interval, r int4range, ts timestamptz, t time, f float8, x text[])"
    ),
    (
        "insert into typed values (1, 'ok', '{sad,NULL}', 'null', 'NaN', 'infinity', '\\x00ff', '10.0.0.1/8',"
        " 'a', B'101', '1 mon -1 day', '[1,5)', '-infinity', '24:00', '-Infinity', '{{a,b},{NULL,\"NULL\"}}'),"
        " (2, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null)"
    ),
    (
        "create table generated (id int generated always as identity primary key, a int,"
        " b int generated always as (a * 2) stored)"
    ),
    "insert into generated (a) values (1), (2)",
]


def test_all_kinds_of_tables(to_postgres: Copies, databases: Databases) -> None:
    fill(databases.source)
    for statement in AWKWARD:
        databases.source.execute(statement)
    to_postgres.publish()
    tables = [
        *(public(name) for name in ("big", "small", "empty", "keyless", "part", "typed")),
        TableName('Weird "Schema"', "select"),
    ]

    result = to_postgres.copy(*tables, public("generated"))

    assert result.failed == {}
    assert_same(databases, *tables)
    assert content(databases.destination, public("generated")), "identity columns copy as they are"
    assert databases.destination.execute("select a from generated order by id") == [(1,), (2,)]


@pytest.mark.parametrize("side", ["source", "destination"])
def test_a_session_killed_in_a_range_neither_loses_nor_doubles_its_rows(
    to_postgres: Copies, databases: Databases, side: str
) -> None:
    """The range is read again by itself."""
    fill(databases.source)
    databases.source.execute("insert into big select g, repeat('x', 80) from generate_series(5001, 60000) g")
    to_postgres.range_bytes = 2 << 20
    to_postgres.publish()
    kill = (
        "select count(pg_terminate_backend(pid)) from pg_stat_activity"
        " where application_name = %s and query ilike 'copy%%'"
    )
    killed, copied = [], threading.Event()

    def end_sessions() -> None:
        while sum(killed) < 2 and not copied.is_set():
            ((count,),) = getattr(databases, side).execute(kill, [f"pgetl {to_postgres.id} c1"])
            killed.append(count)

    killer = threading.Thread(target=end_sessions)
    result = to_postgres.copy(BIG, runner=Meddling(before=killer.start))
    copied.set()
    killer.join()

    assert result.published == (BIG,), result
    assert sum(killed) > 0
    assert_same(databases, BIG)


def test_a_second_copy_replaces_the_first_in_one_step(to_postgres: Copies, databases: Databases) -> None:
    """Readers see the old rows until the new ones are there, all of them."""
    fill(databases.source)
    to_postgres.publish()
    to_postgres.copy(BIG)
    databases.source.execute("delete from big where id > 100")
    to_postgres.store.apply({BIG: RolledBack(to_postgres.store.tables()[BIG].state.generation, slot_alive=False)})
    counts: list[int] = []
    stop = threading.Event()

    def read() -> None:
        with databases.destination.connect() as connection:
            while not stop.is_set():
                counts.append(connection.execute("select count(*) from big").fetchone()[0])  # type: ignore[index]

    reader = threading.Thread(target=read)
    reader.start()
    try:
        result = to_postgres.copy(BIG)
    finally:
        stop.set()
        reader.join()

    assert result.published == (BIG,)
    assert set(counts) <= {5000, 100}
    assert_same(databases, BIG)


def staging_tables(database: Database) -> list[str]:
    found = database.execute(
        "select relname::text from pg_class where relnamespace = to_regnamespace('pgetl_staging') and relkind = 'r'"
    )
    return [name for (name,) in found]


@pytest.mark.parametrize(
    ("prepare", "kind"),
    [
        ("create table big (id int primary key, note text, at timestamptz)", ErrorKind.SCHEMA),
        (
            "create table big (id int primary key, note varchar(3), at timestamptz, amount numeric(12,2))",
            ErrorKind.VALUE,
        ),
    ],
    ids=["a column is missing", "a value is too long"],
)
def test_what_the_destination_refuses_fails_alone(
    to_postgres: Copies, databases: Databases, prepare: str, kind: ErrorKind
) -> None:
    fill(databases.source)
    to_postgres.publish()
    databases.destination.execute(prepare)

    result = to_postgres.copy(BIG, SMALL)

    assert result.published == (SMALL,)
    assert result.failed[BIG].kind is kind
    assert staging_tables(databases.destination) == []


def test_a_destination_that_is_away_ends_the_attempt(
    to_postgres: Copies, databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(databases.source)
    to_postgres.publish()
    monkeypatch.setenv(DESTINATION, "postgresql://nobody@127.0.0.1:1/nowhere")

    result = to_postgres.copy(BIG)

    assert result.failure is not None
    assert result.failure.kind is ErrorKind.CONNECTION
    assert to_postgres.slots() == set()
    assert to_postgres.phases()[BIG] == "Errored"
