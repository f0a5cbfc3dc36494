"""Types that the destination does not have, or has otherwise: copies and changes bring the same, as text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases, Server
from tests.failures.pipeline import PipelineUnderTest

pytestmark = pytest.mark.servers

_EXTENSIONS = ("citext", "hstore", "ltree")
_SOURCE = """
create type mood as enum ('sad', 'happy');
create type pair as (a int, b text);
create domain amount as numeric(12,4);
create domain whole as int;
create type span as range (subtype = numeric);
create domain of_table as regclass;
create table odd (
    id int primary key, class regclass, proc regproc, type regtype, role regrole, space regnamespace, config regconfig,
    classes regclass[], domain_of of_table, acl aclitem, acls aclitem[],
    mood mood, moods mood[], pair pair, amount amount, whole whole, span span, cursor refcursor, c "char", n name,
    o oid, x xid, lsn pg_lsn, m money, v oidvector);
"""
_ROW = """
insert into odd select n, 'public.odd', 'pg_catalog.now', 'public.mood', 'postgres', 'public', 'simple',
    '{public.odd,pg_class}', 'public.odd', 'postgres=r/postgres', '{postgres=r/postgres}',
    'happy', '{sad,happy}', '(1,"x y")', 1.2345, 7, '[1.5,2.5)', 'cur', 'x', 'a name', 4294967295, '77', '1/2', 12.34,
    '1 2 3'
from generate_series(%s::int, %s::int) n
"""
_EXTENDED = "create table extended (id int primary key, c citext, h hstore, l ltree, cs citext[])"
_EXTENDED_ROW = """
insert into extended select n, 'Ab', 'a=>1,b=>NULL', 'top.sub', '{Ab,NULL}' from generate_series(%s::int, %s::int) n
"""
# Of the same names, and none of them the same.
_OTHERS = """
create type mood as (a int);
create type pair as (b text, a int);
create domain amount as numeric(12,2);
create domain whole as text;
create type span as range (subtype = int);
"""


@pytest.fixture(scope="module")
def contrib() -> Iterator[Server]:
    """With the extensions of contrib, which the others do not have."""
    with Server.start(15) as server:
        yield server


@pytest.fixture
def source_server(contrib: Server) -> Server:
    return contrib


@pytest.fixture(params=["without the extensions", pytest.param("with them", marks=pytest.mark.slow)])
def destination_server(request: pytest.FixtureRequest, contrib: Server, server16: Server) -> Server:
    return contrib if request.param == "with them" else server16


@pytest.fixture
def shop(databases: Databases, state_database: Database, tmp_path: Path) -> Iterator[PipelineUnderTest]:
    databases.source.execute(_SOURCE)
    for name in _EXTENSIONS:
        databases.source.execute(f"create extension {name}")
    databases.source.execute(_EXTENDED)
    shop = PipelineUnderTest(databases, state_database, tmp_path, declared=("public.odd", "public.extended"))
    yield shop
    shop.close()


def grow(shop: PipelineUnderTest, first: int) -> None:
    """A few by themselves, and many at once."""
    for one, last in ((first, first), (first + 1, first + 100)):
        shop.source.execute(_ROW, (one, last))
        shop.source.execute(_EXTENDED_ROW, (one, last))
    shop.source.execute("update odd set n = n || '.', class = 'pg_class' where id % 3 = 0")
    shop.source.execute("update extended set c = c || '.', h = h || 'z=>9' where id % 3 = 0")


def texts(database: Database, table: str) -> list[tuple[object, ...]]:
    """What is kept as text needs no quotes of its own in the row's text: so column by column."""
    with database.connect() as session:
        session.execute("set search_path = pg_catalog; set lc_monetary = 'C'; set timezone = 'UTC'")
        names = session.execute(
            "select attname::text from pg_attribute where attrelid = $1::regclass and attnum > 0 order by 1".replace(
                "$1", f"'public.{table}'"
            ).encode()
        ).fetchall()
        columns = ", ".join(f'"{name}"::text' for (name,) in names)
        return session.execute(f"select {columns} from public.{table} order by id".encode()).fetchall()


def assert_equal(shop: PipelineUnderTest) -> None:
    assert set(shop.phases().values()) == {"Ready"}, shop.phases()
    for table in ("odd", "extended"):
        assert texts(shop.destination, table) == texts(shop.source, table)


def type_of(database: Database, column: str) -> str:
    table, name = column.split(".")
    statement = (
        "select format_type(atttypid, atttypmod) from pg_attribute where attrelid = %s::regclass and attname = %s"
    )
    return str(database.execute(statement, (f"public.{table}", name))[0][0])


@pytest.mark.parametrize(
    "others", [pytest.param(False, marks=pytest.mark.slow), True], ids=["", "others of the same names"]
)
def test_copies_and_changes_bring_the_same(shop: PipelineUnderTest, others: bool) -> None:
    present = shop.destination.server is shop.source.server
    if present:
        for name in _EXTENSIONS:
            shop.destination.execute(f"create extension {name}")
    if others:
        shop.destination.execute(_OTHERS)
    grow(shop, 1)
    shop.catch_up().assert_well()
    with shop.follow() as running:
        grow(shop, 1001)
        running.until(shop.arrives("select 1 from extended where id = 1101 and c::text = 'Ab.'"), "all had arrived")
    shop.catch_up().assert_well()
    assert_equal(shop)
    assert type_of(shop.destination, "extended.c") == ("citext" if present else "text")
    assert type_of(shop.destination, "odd.class") == type_of(shop.destination, "odd.domain_of") == "text"
    assert type_of(shop.destination, "odd.amount") == ("text" if others else "amount")


def test_an_infinite_interval_is_nothing_else_to_a_server_that_has_none(
    server16: Server, server18: Server, state_database: Database, tmp_path: Path
) -> None:
    """In binary it would be a number of years."""
    databases = Databases(*(server.create_database(f"spans_{os.getpid()}") for server in (server18, server16)))
    shop = PipelineUnderTest(databases, state_database, tmp_path, declared=("public.spans", "public.many"))
    for name, sql_type in (("spans", "interval"), ("many", "interval[]")):
        shop.source.execute(f"create table {name} (id int primary key, span {sql_type})")
    shop.source.execute("insert into spans values (1, '1 year 2 days'); insert into many values (1, '{1 s,NULL}')")
    with shop.follow() as running:
        shop.source.execute("insert into spans values (2, '3 hours'); insert into many values (2, '{-1 mon}')")
        running.until(shop.arrives("select 1 from spans join many using (id) where id = 2"), "finite ones arrived")
        shop.source.execute("insert into spans values (3, 'infinity'); insert into many values (3, '{-infinity}')")
        running.until(lambda: set(shop.phases().values()) == {"Errored"}, "both were Errored")
        running.stop()
    for database in databases:
        database.server.drop_database(database.name)
