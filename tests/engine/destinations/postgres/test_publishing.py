"""A copy becomes the table at once, and what people have put on the table stays."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_provider_pgetl.engine.destinations.postgres import PostgresDestination
from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.testing.builders import INT8, TEXT, Replica
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.raising import raises

COLUMNS = (Column("id", INT8, "bigint", not_null=True), Column("name", TEXT, "text"), Column("note", TEXT, "text"))
SCHEMA = TableSchema(TableName("shop", "orders"), 7, COLUMNS, ("id",))
ANN, BOB, CAT = (b"1", b"Ann", b"x"), (b"2", b"Bob", None), (b"3", b"Cat", None)
MOOD = PgType(50_000, "shop.mood", "enum", labels=("sad", "it's", "happy"))


@pytest.fixture
def destination(database: Database) -> Iterator[PostgresDestination]:
    opened = PostgresDestination(database.uri, "shop", "driver")
    yield opened
    opened.shutdown()


@pytest.fixture
def replica(destination: PostgresDestination) -> Replica:
    return Replica(destination, SCHEMA, pipeline="shop")


def names(database: Database) -> list[str]:
    return [row[0] for row in database.execute("select name from shop.orders order by id")]


def oid(database: Database) -> int:
    found: int = database.execute("select 'shop.orders'::regclass::oid::int8")[0][0]
    return found


def definition(database: Database) -> list[tuple[str, str, bool]]:
    return database.execute(
        """select attname::text, format_type(atttypid, atttypmod), attnotnull from pg_attribute
        where attrelid = 'shop.orders'::regclass and attnum > 0 and not attisdropped order by attnum"""
    )


def test_a_table_is_made_as_the_source_has_it(database: Database, replica: Replica) -> None:
    columns = (*COLUMNS[:2], Column("note", PgType(1700, "numeric"), "numeric(10,2)", comment="it's money"))
    replica.schema = replace(SCHEMA, columns=columns, comment="all orders")
    replica.copy(1)
    assert definition(database) == [("id", "bigint", True), ("name", "text", False), ("note", "numeric(10,2)", False)]
    assert database.execute(
        "select obj_description('shop.orders'::regclass), col_description('shop.orders'::regclass, 3)"
    ) == [("all orders", "it's money")]
    assert database.execute(
        "select indexrelid::regclass::text, indisprimary from pg_index where indrelid = 'shop.orders'::regclass"
    ) == [("shop.orders_pkey", True)]


def test_nothing_of_a_copy_is_left_behind(database: Database, replica: Replica) -> None:
    replica.copy(1, ANN)
    replica.destination.begin_copy(replica.target, 2)  # type: ignore[attr-defined]  # AtomicCopy
    replica.stage(2, 0, [BOB])
    replica.destination.begin_copy(replica.target, 3)  # type: ignore[attr-defined]  # AtomicCopy
    assert database.execute("select count(*) from pg_tables where schemaname = 'pgetl_staging'") == [(1,)]
    replica.copy(4, CAT)
    assert database.execute("select count(*) from pg_tables where schemaname = 'pgetl_staging'") == [(0,)]
    assert database.execute("select count(*) from pgetl.destination_range") == [(0,)]


def test_grants_comments_and_indexes_go_along(database: Database, replica: Replica) -> None:
    replica.copy(1, ANN)
    before = oid(database)
    reader = f"reader_{before}"
    for statement in (
        f"create role {reader}",
        f"grant usage on schema shop to {reader}",
        f"grant select on shop.orders to {reader} with grant option",
        f"grant update (note) on shop.orders to {reader}",
        "comment on table shop.orders is 'mine'",
        "comment on column shop.orders.name is 'its name'",
        'create index "by Name" on shop.orders using btree (lower(name)) include (note) where id > 0',
        "alter table shop.orders add constraint once unique (note, id)",
    ):
        database.execute(statement)
    replica.copy(2, BOB)
    assert oid(database) != before
    assert names(database) == ["Bob"]
    assert database.execute(
        "select obj_description('shop.orders'::regclass), col_description('shop.orders'::regclass, 2),"
        f" has_table_privilege('{reader}', 'shop.orders', 'select with grant option'),"
        f" has_column_privilege('{reader}', 'shop.orders', 'note', 'update'),"
        f" has_table_privilege('{reader}', 'shop.orders', 'insert')"
    ) == [("mine", "its name", True, True, False)]
    found = database.execute("select indexdef from pg_indexes where schemaname = 'shop' order by indexname")
    assert [row[0] for row in found] == [
        'CREATE INDEX "by Name" ON shop.orders USING btree (lower(name)) INCLUDE (note) WHERE (id > 0)',
        "CREATE UNIQUE INDEX once ON shop.orders USING btree (note, id)",
        "CREATE UNIQUE INDEX orders_pkey ON shop.orders USING btree (id)",
    ]
    constraints = (
        "select conname::text from pg_constraint where conrelid = 'shop.orders'::regclass and contype in ('p', 'u')"
    )
    assert sorted(database.execute(constraints)) == [("once",), ("orders_pkey",)]
    database.execute(f"drop owned by {reader}")
    database.execute(f"drop role {reader}")


@pytest.mark.parametrize(
    "dependent",
    [
        "create view shop.v as select * from shop.orders",
        "create materialized view shop.v as select name from shop.orders",
        "create table shop.items (orders bigint references shop.orders)",
        "create rule r as on delete to shop.orders do also nothing",
        "alter table shop.orders add column mine int default 5",
        "alter table shop.orders add check (id > 0)",
        "alter table shop.orders enable row level security",
        "create table shop.heir () inherits (shop.orders)",
        "create table shop.heap (row shop.orders)",
        "create function shop.f() returns setof shop.orders language sql as 'select * from shop.orders'",
        "create publication p for table shop.orders",
        "alter table shop.orders replica identity full",
        "alter table shop.orders set (fillfactor = 70)",
    ],
    ids=lambda statement: " ".join(statement.split()[:4]),
)
def test_a_table_that_others_depend_on_is_refilled(database: Database, replica: Replica, dependent: str) -> None:
    replica.copy(1, ANN, BOB)
    before = oid(database)
    database.execute(dependent)
    replica.copy(2, BOB, CAT)
    assert oid(database) == before
    assert names(database) == ["Bob", "Cat"]


def test_a_table_of_somebody_else_s_keeps_its_types_and_indexes(database: Database, replica: Replica) -> None:
    database.execute("create schema shop")
    database.execute("create table shop.orders (note varchar(9), id int constraint mine primary key, name text)")
    assert replica.destination.copy_format(SCHEMA) == "text"  # type: ignore[attr-defined]  # RangeCopy
    replica.copy(1, ANN, CAT)
    assert names(database) == ["Ann", "Cat"]
    assert definition(database) == [
        ("note", "character varying(9)", False),
        ("id", "integer", True),
        ("name", "text", False),
    ]
    assert database.execute("select conname::text from pg_constraint where conname = 'mine'") == [("mine",)]


@pytest.mark.parametrize("depended_on", [False, True])
def test_a_table_of_somebody_else_s_keeps_a_key_of_its_own(
    database: Database, replica: Replica, *, depended_on: bool
) -> None:
    database.execute("create schema shop")
    database.execute(
        "create table shop.orders (id bigint not null unique, name text constraint mine primary key, note text)"
    )
    if depended_on:
        database.execute("create view shop.v as select id from shop.orders")
    replica.copy(1, ANN, CAT)
    assert database.execute(
        "select pg_get_constraintdef(oid) from pg_constraint where conname = 'mine' and contype = 'p'"
    ) == [("PRIMARY KEY (name)",)]


def test_a_table_of_somebody_else_s_that_lacks_a_column_is_an_error(database: Database, replica: Replica) -> None:
    database.execute("create schema shop")
    database.execute("create table shop.orders (id bigint primary key, name text)")
    with raises(ErrorKind.SCHEMA, "shop.orders", match="note"):
        replica.copy(1, ANN)


@pytest.mark.parametrize("depended_on", [False, True])
def test_a_table_of_ours_follows_the_source(database: Database, replica: Replica, *, depended_on: bool) -> None:
    replica.copy(1, ANN)
    if depended_on:
        database.execute("create view shop.v as select id from shop.orders")
    columns = (*COLUMNS, Column("new", TEXT, "text"))
    replica.schema = replace(SCHEMA, columns=columns, key=("id",))
    replica.copy(2, (*BOB, b"value"))
    assert database.execute("select id, name, new from shop.orders") == [(2, "Bob", "value")]


@pytest.mark.parametrize("depended_on", [False, True])
@pytest.mark.parametrize("key", [("id", "name"), ("name",), ()])
def test_a_table_of_ours_has_the_key_that_the_source_has_by_now(
    database: Database, replica: Replica, key: tuple[str, ...], *, depended_on: bool
) -> None:
    """Otherwise it refuses rows that the source has, and goes on refusing them however often it is copied again."""
    replica.copy(1, ANN)
    if depended_on:
        database.execute("create view shop.v as select id from shop.orders")
    replica.schema = replace(SCHEMA, key=key)
    replica.copy(2, ANN, (b"1", b"Bob", None), *([] if "name" in key else [ANN]))
    found = database.execute("select pg_get_constraintdef(oid), conname::text from pg_constraint where contype = 'p'")
    assert [row for row in found if "orders" in row[1]] == (
        [(f"PRIMARY KEY ({', '.join(key)})", "orders_pkey")] if key else []
    )
    assert database.execute("select count(*) from shop.orders") == [(2 if key else 3,)]


@pytest.mark.parametrize("former", [("id", "name"), ("id",)], ids=["of the former key", "declared so"])
def test_a_column_of_ours_that_may_be_null_by_now(
    database: Database, replica: Replica, former: tuple[str, ...]
) -> None:
    """As in a table that takes the place of the former one. Else what others depend on refuses the row for ever."""
    strict = tuple(replace(one, not_null=one.name == "name") for one in COLUMNS)
    replica.schema = replace(SCHEMA, columns=strict, key=former)
    replica.copy(1, ANN)
    database.execute("create view shop.v as select name from shop.orders")
    replica.schema = SCHEMA
    replica.copy(2, (b"2", None, None))
    assert database.execute("select id, name from shop.orders") == [(2, None)]


def test_a_former_key_that_others_refer_to_is_an_error_that_names_them(database: Database, replica: Replica) -> None:
    replica.copy(1, ANN)
    database.execute("create table shop.items (orders bigint references shop.orders)")
    replica.schema = replace(SCHEMA, key=("id", "name"))
    with raises(ErrorKind.SCHEMA, "shop.orders", match="items_orders_fkey") as caught:
        replica.copy(2, ANN)
    assert "Drop what depends on it" in caught.value.remedy
    assert names(database) == ["Ann"]


@pytest.mark.parametrize("name", ["orders", 63 * "o"])
def test_a_new_key_stands_in_the_way_of_no_other_table(database: Database, replica: Replica, name: str) -> None:
    """Whatever name its constraint is given at first, others have theirs."""
    replica.schema = replace(SCHEMA, table=TableName("shop", name))
    replica.copy(1, ANN)
    database.execute(f"create view shop.v as select id from shop.{name}")
    database.execute("create table shop.orders_key (id int)")
    replica.schema = replace(replica.schema, key=("id", "name"))
    replica.copy(2, ANN, BOB)
    key = "select pg_get_constraintdef(oid) from pg_constraint where contype = 'p' and conrelid = %s::regclass"
    assert database.execute(key, [f"shop.{name}"]) == [("PRIMARY KEY (id, name)",)]


def test_a_column_that_may_be_null_by_now_may_be_so_where_others_depend_on_the_table(
    database: Database, replica: Replica
) -> None:
    must = Column("note", TEXT, "text", not_null=True)
    replica.schema = replace(SCHEMA, columns=(*COLUMNS[:2], must), key=("id", "name"))
    replica.copy(1, ANN)
    database.execute("create view shop.v as select id from shop.orders")
    replica.schema = SCHEMA
    replica.copy(2, (b"2", None, None))
    assert database.execute("select id, name, note from shop.orders") == [(2, None, None)]
    assert [name for name, _, required in definition(database) if required] == ["id"]


def test_a_view_on_a_column_of_another_type_is_named(database: Database, replica: Replica) -> None:
    short = Column("note", PgType(1043, "varchar", sql_type="character varying(10)"), "character varying(10)")
    replica.schema = replace(SCHEMA, columns=(*COLUMNS[:2], short))
    replica.copy(1, ANN)
    database.execute("create view shop.v as select note from shop.orders")
    replica.schema = SCHEMA
    with raises(
        ErrorKind.SCHEMA, "shop.orders", match=r"used by a view or rule: rule _RETURN on view shop\.v"
    ) as caught:
        replica.copy(2, ANN)
    assert "Drop what depends on it" in caught.value.remedy
    assert names(database) == ["Ann"]


def test_a_column_of_a_former_key_that_the_source_has_dropped_may_be_null(database: Database, replica: Replica) -> None:
    replica.schema = replace(SCHEMA, key=("id", "name"))
    replica.copy(1, ANN)
    replica.schema = replace(SCHEMA, columns=(COLUMNS[0], COLUMNS[2]))
    replica.copy(2, (b"2", b"x"))
    assert database.execute("select id, name, note from shop.orders") == [(2, None, "x")]


def test_a_column_that_the_source_has_dropped_stays_and_may_be_null(database: Database, replica: Replica) -> None:
    must = Column("must", TEXT, "text", not_null=True)
    replica.schema = replace(SCHEMA, columns=(*COLUMNS, must))
    replica.copy(1, (*ANN, b"value"))
    replica.schema = SCHEMA
    replica.copy(2, BOB)
    assert database.execute("select id, name, must from shop.orders") == [(2, "Bob", None)]


def test_a_column_of_another_type_beside_one_that_was_dropped(database: Database, replica: Replica) -> None:
    """The table stays, for the sake of the column; its own columns follow the source all the same."""
    one, more = Column("value", TEXT, "text", not_null=True), Column("more", TEXT, "text")
    replica.schema = replace(SCHEMA, columns=(*COLUMNS, one, more))
    replica.copy(1, (*ANN, b"value", b"more"))
    replica.schema = replace(SCHEMA, columns=(*COLUMNS, Column("value", INT8, "bigint", not_null=True)))
    replica.copy(2, (*BOB, (5).to_bytes(8, "big")))
    assert database.execute("select id, name, value, more from shop.orders") == [(2, "Bob", 5, None)]


def test_types_are_made_and_enums_grow(database: Database, replica: Replica) -> None:
    numeric = PgType(1700, "numeric", sql_type="numeric(9,3)")
    positive = PgType(50_001, "shop.positive", "domain", inner=numeric)
    pair = PgType(50_002, 'shop."Pair"', "composite", fields=(("a", PgType(23, "integer")), ("b c", MOOD)))
    moods = PgType(50_003, "shop.mood[]", "array", inner=MOOD)
    spans = PgType(50_004, "shop.span", "range", inner=PgType(701, "double precision"))
    types = (INT8, MOOD, positive, pair, moods, spans)
    columns = tuple(Column(f"c{at}", pg_type, pg_type.name) for at, pg_type in enumerate(types))
    replica.schema = replace(SCHEMA, columns=columns, key=("c0",))
    replica.copy(1, (b"1", b"it's", b"1.500", b"(1,happy)", b"{sad,NULL}", b"[1,2)"))
    assert database.execute("select c0, c1::text, c2::text, c3::text, c4::text, c5::text from shop.orders") == [
        (1, "it's", "1.500", "(1,happy)", "{sad,NULL}", "[1,2)")
    ]
    grown = replace(MOOD, labels=("angry", "sad", "so-so", "it's", "happy", "glad"))
    replica.schema = replace(replica.schema, columns=(columns[0], replace(columns[1], type=grown), *columns[2:]))
    replica.copy(2, (b"1", b"so-so", None, None, None, None))
    labels = database.execute("select enumlabel::text from pg_enum order by enumsortorder")
    assert [row[0] for row in labels] == ["angry", "sad", "so-so", "it's", "happy", "glad"]


def test_what_the_destination_cannot_have_is_kept_as_text(
    database: Database, replica: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    hstore = PgType(50_010, "public.hstore", extension="hstore")
    columns = (
        COLUMNS[0],
        Column("name", hstore, "public.hstore"),
        Column("note", replace(hstore, kind="array", inner=hstore, name="public.hstore[]"), "public.hstore[]"),
    )
    replica.schema = replace(SCHEMA, columns=columns)
    assert replica.destination.copy_format(replica.schema) == "text"  # type: ignore[attr-defined]  # RangeCopy
    with caplog.at_level(logging.WARNING):
        replica.copy(1, (b"1", b'"a"=>"1"', b"{}"))
    replica.destination.claim("shop", 1)  # type: ignore[attr-defined]  # Positions
    replica.apply(replica.wire().insert((b"2", b'"b"=>NULL', None)).take())
    assert names(database) == ['"a"=>"1"', '"b"=>NULL']
    assert "shop.orders.name is kept as text" in caplog.text


def test_binary_is_for_types_that_mean_the_same_on_both_sides(database: Database, replica: Replica) -> None:
    destination = replica.destination
    assert isinstance(destination, PostgresDestination)
    assert destination.copy_format(SCHEMA) == "binary"
    replica.copy(1, ANN)
    assert destination.copy_format(SCHEMA) == "binary"
    enum = replace(SCHEMA, table=TableName("shop", "moods"), columns=(COLUMNS[0], Column("m", MOOD, "shop.mood")))
    assert destination.copy_format(enum) == "binary"
    array = PgType(50_003, "shop.mood[]", "array", inner=MOOD)
    assert destination.copy_format(replace(enum, columns=(COLUMNS[0], Column("m", array, "shop.mood[]")))) == "text"


def test_a_key_that_is_not_unique_in_the_copy_fails_and_leaves_the_table(database: Database, replica: Replica) -> None:
    replica.copy(1, ANN)
    with raises(ErrorKind.CONSTRAINT, "shop.orders"):
        replica.copy(2, BOB, BOB)
    assert names(database) == ["Ann"]


def test_a_row_that_cannot_be_stored_names_the_table(replica: Replica) -> None:
    with raises(ErrorKind.VALUE, "shop.orders"):
        replica.copy(1, (b"1", b"\0", None))
