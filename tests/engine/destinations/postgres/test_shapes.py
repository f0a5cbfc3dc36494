"""Tables that somebody else made: more columns, other types, generated and identity columns, indexes, partitions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_pgetl.engine.changes.batch import Truncate, WireRows
from airflow_provider_pgetl.engine.destinations.postgres import PostgresDestination, apply
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import CommitLsn
from airflow_provider_pgetl.engine.model.tables import Column, TableName, TableSchema
from airflow_provider_pgetl.testing import ABSENT
from airflow_provider_pgetl.testing.builders import INT8, TEXT, Replica
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.raising import raises

SCHEMA = TableSchema(
    TableName("public", "t"),
    7,
    (Column("id", INT8, "bigint"), Column("name", TEXT, "text"), Column("note", TEXT, "text")),
    ("id",),
)
ANN, BOB = (b"1", b"Ann", b"x"), (b"2", b"Bob", None)


@pytest.fixture(params=[1000, -1], ids=["single", "bulk"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "AT_MOST", request.param)


@pytest.fixture
def replica(database: Database) -> Iterator[Replica]:
    opened = PostgresDestination(database.uri, "shop", "apply")
    yield Replica(opened, SCHEMA, pipeline="shop")
    opened.shutdown()


def rows(database: Database, columns: str = "*") -> list[tuple[Any, ...]]:
    return database.execute(f"select {columns} from t order by id")


def test_columns_that_the_source_does_not_have_keep_their_values_even_when_a_row_moves(
    database: Database, replica: Replica
) -> None:
    database.execute("create table t (mine int default 7, id bigint primary key, note text, name text)")
    replica.create(ANN)
    database.execute("update t set mine = 8")
    replica.apply(replica.wire().update((b"9", b"Anna", ABSENT), old=ANN).insert(BOB).take())
    assert rows(database, "id, name, note, mine") == [(2, "Bob", None, 7), (9, "Anna", "x", 8)]


def test_generated_columns_are_left_to_the_destination(database: Database, replica: Replica) -> None:
    database.execute(
        "create table t (id bigint primary key, name text, note text generated always as (upper(name)) stored)"
    )
    replica.create(ANN)
    replica.apply(replica.wire().update((b"3", b"Cat", b"sent"), old=ANN).insert(BOB).take())
    assert rows(database) == [(2, "Bob", "BOB"), (3, "Cat", "CAT")]


def test_two_keys_that_the_destination_s_type_takes_for_one_are_an_error(database: Database) -> None:
    """Of a row that is there under the very key, the new one takes the place."""
    database.execute("create table t (id char(10) primary key, name text, note text)")
    opened = PostgresDestination(database.uri, "shop", "apply")
    replica = Replica(opened, replace(SCHEMA, columns=(Column("id", TEXT, "text"), *SCHEMA.columns[1:])), "shop")
    replica.create((b"a", b"Ann", None))
    replica.apply(replica.wire().insert((b"a", b"Anna", None)).take())
    with pytest.raises(PgetlError, match="takes two rows of the source for one"):
        replica.apply(replica.wire().insert((b"a ", b"Bob", None)).take())
    assert rows(database, "name") == [("Anna",)]
    opened.shutdown()


def test_identity_columns_take_the_source_s_values(database: Database, replica: Replica) -> None:
    database.execute("create table t (id bigint generated always as identity primary key, name text, note text)")
    replica.create(ANN)
    replica.apply(replica.wire().insert(BOB).update((b"1", b"Anna", ABSENT)).take())
    replica.apply(replica.wire().update((b"9", b"Anna", ABSENT), old=(b"1", b"Anna", b"x")).take())
    assert rows(database) == [(2, "Bob", None), (9, "Anna", "x")]


def test_an_identity_column_outside_the_key_is_rewritten(database: Database, replica: Replica) -> None:
    database.execute("create table t (id bigint primary key, name text, note int generated always as identity)")
    replica.create((b"1", b"Ann", b"5"))
    replica.apply(*[replica.wire().update((b"1", b"Anna", b"6")).insert((b"2", b"Bob", b"7")).take()])
    assert [row[:2] for row in rows(database)] == [(1, "Anna"), (2, "Bob")]


@pytest.mark.parametrize("kind", [b"t", b"b"], ids=["text", "binary"])
def test_other_types_that_can_hold_the_values_do(database: Database, replica: Replica, kind: bytes) -> None:
    database.execute("create table t (id numeric(12,1) primary key, name varchar(6), note json)")
    replica.create((b"1", b"Ann", b"{}"))
    wire = replica.wire()
    wire.kind = kind
    key = [b"%d" % at if kind == b"t" else at.to_bytes(8, "big") for at in range(5)]
    wire.update((key[1], b"Anna", b"[1]")).insert((key[2], b"Bob", None)).insert((key[3], None, b"null"))
    wire.update((key[4], b"Bo", ABSENT), old=(key[2], b"Bob", None)).delete((key[3], None, b"null"))
    replica.apply(wire.take())
    assert rows(database, "id::text, name, note::text") == [("1.0", "Anna", "[1]"), ("4.0", "Bo", None)]


def test_a_value_that_does_not_fit_is_refused_and_not_cut(database: Database, replica: Replica) -> None:
    database.execute("create table t (id bigint primary key, name varchar(3), note text)")
    replica.create(ANN)
    for wire in (replica.wire().insert((b"3", b"toolong", None)), replica.wire().update((b"1", b"toolong", None))):
        with raises(ErrorKind.VALUE, "public.t"):
            replica.apply(wire.take())
    assert rows(database) == [(1, "Ann", "x")]


def test_a_missing_column_is_the_table_s_error(database: Database, replica: Replica) -> None:
    replica.create(ANN)
    database.execute("alter table t drop column note")
    for statement in ("select 1", "alter table t add column note text"):
        database.execute(statement)  # one that is made anew has lost the values
        with raises(ErrorKind.SCHEMA, "public.t", match="note"):
            replica.apply(replica.wire().insert(BOB).take())
    assert rows(database) == [(1, "Ann", None)]


def test_a_column_that_is_altered_while_we_stream(database: Database, replica: Replica) -> None:
    replica.create(ANN)
    replica.apply(binary(replica, 2, b"Bob"))
    for sql_type in ("numeric(9,2)", "integer"):
        database.execute(f"alter table t alter column id type {sql_type}")
        with raises(ErrorKind.SCHEMA, "public.t", match=f"id bigint became id {re.escape(sql_type)}"):
            replica.apply(binary(replica, 3, b"Cat"))
    database.execute("alter table t alter column id type bigint")
    replica.apply(binary(replica, 3, b"Cat"))
    assert rows(database, "id::int, name") == [(1, "Ann"), (2, "Bob"), (3, "Cat")]


def binary(replica: Replica, key: int, name: bytes) -> WireRows:
    wire = replica.wire()
    wire.kind = b"b"
    return wire.insert((key.to_bytes(8, "big"), name, None)).take()


def test_a_missing_table_is_the_table_s_error(database: Database, replica: Replica) -> None:
    replica.create(ANN)
    database.execute("drop table t")
    with raises(ErrorKind.SCHEMA, "public.t", match="was dropped"):
        replica.apply(replica.wire().insert(BOB).take())


def test_values_swapped_under_another_unique_index(database: Database, replica: Replica) -> None:
    replica.create(ANN, BOB)
    database.execute("create unique index on t (name)")
    wire = replica.wire().update((b"1", b"-", ABSENT)).update((b"2", b"Ann", ABSENT)).update((b"1", b"Bob", ABSENT))
    replica.apply(wire.take())
    assert rows(database) == [(1, "Bob", "x"), (2, "Ann", None)]


def test_a_row_that_is_in_the_way_is_overwritten(database: Database, replica: Replica) -> None:
    replica.create(ANN)
    database.execute("insert into t values (2, 'stranger', 'kept?')")
    replica.apply(replica.wire().insert(BOB).insert((b"3", b"Cat", None)).take())
    assert rows(database) == [(1, "Ann", "x"), (2, "Bob", None), (3, "Cat", None)]


@pytest.mark.parametrize("destination_server", [15], indirect=True)
def test_a_row_with_a_key_that_only_the_destination_takes_for_this_one_is_not_overwritten(
    database: Database, replica: Replica
) -> None:
    database.execute("create extension citext; create table t (id bigint, name citext primary key, note text)")
    named = replace(replica, schema=replace(SCHEMA, key=("name",))).create(ANN)
    with pytest.raises(PgetlError, match="takes two rows of the source for one") as caught:
        named.apply(named.wire().insert((b"2", b"ANN", None)).take())
    assert caught.value.table == "public.t"
    assert rows(database) == [(1, "Ann", "x")]


def test_a_unique_index_that_the_source_s_rows_violate_is_the_table_s_error(
    database: Database, replica: Replica
) -> None:
    replica.create(ANN)
    database.execute("create unique index on t (name)")
    with raises(ErrorKind.CONSTRAINT, "public.t"):
        replica.apply(replica.wire().insert((b"2", b"Ann", None)).take())
    assert rows(database) == [(1, "Ann", "x")]


def test_triggers_and_foreign_keys_stay_quiet(database: Database, replica: Replica) -> None:
    replica.create(ANN)
    database.execute("create table child (id int, parent bigint references t)")
    database.execute("insert into child values (1, 1)")
    database.execute("create function no() returns trigger language plpgsql as 'begin raise exception ''no''; end'")
    database.execute("create trigger no before insert or update or delete on t for each row execute function no()")
    replica.apply(replica.wire().insert(BOB).update((b"2", b"B", None)).delete(ANN).take())
    assert rows(database) == [(2, "B", None)]
    replica.apply(Truncate(SCHEMA, CommitLsn(1), 1))
    assert rows(database) == []


def test_rows_that_a_trigger_keeps_out_are_the_table_s_error(database: Database, replica: Replica) -> None:
    """A trigger that fires always is the destination's own wish; what comes of it is not the source's table."""
    replica.create(ANN)
    keep_out(database)
    for rows_of_one_step in (replica.wire().insert(BOB).take(), binary(replica, 2, b"Bob")):
        with raises(ErrorKind.CONSTRAINT, "public.t", match="keeps some out"):
            replica.apply(rows_of_one_step)
    with pytest.raises(PgetlError, match="keeps some out"):
        replace(replica, generation=2).create(BOB)
    assert rows(database) == [(1, "Ann", "x")]


def test_a_row_that_moves_and_is_kept_out_is_the_table_s_error(
    database: Database, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apply, "AT_MOST", -1)  # which takes a row out and puts it back
    replica.create(ANN)
    keep_out(database)
    with pytest.raises(PgetlError, match="keeps some out"):
        replica.apply(replica.wire().update((b"9", b"Ann", b"x"), old=ANN).take())
    assert rows(database) == [(1, "Ann", "x")]


def keep_out(database: Database) -> None:
    database.execute("create function no() returns trigger language plpgsql as 'begin return null; end'")
    database.execute("create trigger no before insert on t for each row execute function no()")
    database.execute("alter table t enable always trigger no")


def test_a_table_without_an_index_on_its_key(database: Database, replica: Replica) -> None:
    database.execute("create table t (id bigint, name text, note text)")
    replica.create(ANN)
    replica.apply(replica.wire().insert(BOB).update((b"1", b"Anna", ABSENT)).take())
    replica.apply(replica.wire().delete(BOB).take())
    assert rows(database) == [(1, "Anna", "x")]


def test_a_partitioned_table(database: Database, replica: Replica) -> None:
    database.execute("create table t (id bigint primary key, name text, note text) partition by range (id)")
    database.execute("create table t1 partition of t for values from (0) to (5)")
    database.execute("create table t2 partition of t for values from (5) to (10)")
    replica.create(ANN)
    replica.apply(replica.wire().insert(BOB).update((b"9", b"Anna", ABSENT), old=ANN).take())
    assert database.execute("select tableoid::regclass::text, id, note from t order by id") == [
        ("t1", 2, None),
        ("t2", 9, "x"),
    ]


def test_a_partitioned_table_without_a_key(database: Database, replica: Replica) -> None:
    database.execute("create table t (id bigint, name text, note text) partition by range (id)")
    database.execute("create table t1 partition of t for values from (0) to (5)")
    database.execute("create table t2 partition of t for values from (5) to (10)")
    replica.schema = TableSchema(SCHEMA.table, 7, SCHEMA.columns, (), "full")
    replica.create(ANN, ANN, (b"6", b"Ann", b"x"))
    replica.apply(replica.wire().delete(ANN).update((b"7", None, None), old=ANN).take())
    assert rows(database) == [(6, "Ann", "x"), (7, None, None)]


def test_a_key_of_another_collation(database: Database, replica: Replica) -> None:
    database.execute('create table t (id bigint, name text collate "C" primary key, note text)')
    replica.schema = TableSchema(SCHEMA.table, 7, SCHEMA.columns, ("name",), "index")
    replica.create(ANN, BOB)
    replica.apply(replica.wire().update((b"1", b"Zoe", ABSENT), old=ANN).update((b"3", b"Bob", None)).take())
    assert rows(database) == [(1, "Zoe", "x"), (3, "Bob", None)]


def test_names_that_need_quoting(database: Database, replica: Replica) -> None:
    columns = (Column("select", INT8, "bigint"), Column('A "b" %s', TEXT, "text"), Column("ключ $1", TEXT, "text"))
    replica.schema = TableSchema(TableName('Weird "schema"', 'Weird "Name" %'), 7, columns, ("select", "ключ $1"))
    replica.create(ANN)
    replica.apply(replica.wire().update((b"1", b"Anna", b"y"), old=ANN).insert((b"2", b"Bob", b"z")).take())
    replica.apply(replica.wire().delete((b"2", b"Bob", b"z")).take())
    assert database.execute(f"select * from {replica.schema.table.sql}") == [(1, "Anna", "y")]
