"""Columns that a source before 18 computes and does not send: the table made for it computes them as well."""

import os
from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases, Server
from tests.failures.pipeline import PipelineUnderTest
from tests.shop import ShopTable

pytestmark = pytest.mark.servers

PRICES = ShopTable(
    "public.prices",
    """create type size as enum ('small', 'large');
       create function public.code_of(text) returns text language sql immutable return upper($1);
       create table public.prices (
           id int primary key, net numeric(10, 2), rate numeric, size size,
           gross numeric(12, 4) generated always as (net * (1 + rate / 100)) stored,
           fits bool generated always as (size = 'large' and net > 10) stored not null,
           code text generated always as (public.code_of(id::text)) stored);
       create index on public.prices (gross);
       insert into public.prices select n, n, 7, 'large' from generate_series(1, 100) n""",
    columns=("id", "net", "rate", "size", "gross", "fits"),
)
SPREAD = ShopTable(
    "public.spread",
    """create table public.spread (id int primary key, n int, twice int generated always as (n * 2) stored,
           thrice int generated always as (n * 3) stored) partition by range (id);
       create table public.spread_1 (id int primary key, n int, twice int generated always as (n * 2) stored,
           thrice int generated always as (n + n + n) stored);
       alter table public.spread attach partition public.spread_1 for values from (0) to (1000);
       insert into public.spread select n, n from generate_series(1, 100) n""",
    columns=("id", "n", "twice"),
)


def generated(shop: PipelineUnderTest) -> list[tuple[object, ...]]:
    return shop.at_destination(
        """select attrelid::regclass::text, attname::text from pg_attribute
           where attrelid in ('prices'::regclass, 'spread'::regclass) and attgenerated = 's' order by 1, 2"""
    )


FOLDED = """create table public.folded (
    id int primary key, name text, own text collate "POSIX",
    upper_name text generated always as (upper(name)) stored,
    upper_own text generated always as (upper(own)) stored,
    upper_as_c text generated always as (upper(name collate "C")) stored,
    twice int generated always as (id * 2) stored);
insert into public.folded values (1, 'é', 'é')"""


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_what_depends_on_another_locale_is_left_out(
    server16: Server, state_database: Database, tmp_path: Path, locale: str
) -> None:
    names = [f"folded_{os.getpid()}_{side}" for side in ("source", "destination")]
    with server16.connect() as session:
        for name, one in zip(names, ("C", locale), strict=True):
            create = f"create database {name} template template0 encoding 'UTF8' lc_collate '{one}' lc_ctype '{one}'"
            session.execute(create.encode())
    databases = Databases(*(Database(server16, name) for name in names))
    shop = PipelineUnderTest(databases, state_database, tmp_path, declared=("public.folded",))
    shop.source.execute(FOLDED)
    assert shop.catch_up().code == 0
    generated = "select attname::text from pg_attribute where attrelid = 'folded'::regclass and attgenerated = 's'"
    alike = {("upper_name",)} if locale == "C" else set()
    assert set(shop.at_destination(generated)) == {("twice",)} | alike
    shop.tables = (ShopTable("public.folded", FOLDED),)
    shop.assert_equal()
    for name in names:
        server16.drop_database(name)


def test_a_table_that_is_made_for_it_generates_what_the_source_generates(shop: PipelineUnderTest) -> None:
    shop.tables, shop.declared = (PRICES, SPREAD), ("public.prices", "public.spread")
    for one in shop.tables:
        shop.source.execute(one.create)
    shop.catch_up().assert_well()
    expected = [("prices", "fits"), ("prices", "gross"), ("spread", "twice")]
    assert generated(shop) == expected
    shop.assert_equal()
    shop.source.execute(
        "update prices set net = net * 2, size = 'small' where id <= 50; delete from spread where id = 2"
    )
    shop.source.execute("update prices set id = id + 1000 where id <= 10; update spread set n = 0 where id < 60")
    shop.source.execute("insert into prices values (5000, 1.25, 19, 'large')")
    shop.catch_up()
    shop.assert_equal()
    (before,) = shop.at_destination("select 'prices'::regclass::oid")
    shop.pgetl("reset", "public.prices").assert_well()
    shop.catch_up()
    shop.assert_equal()
    assert generated(shop) == expected
    assert shop.at_destination("select 'prices'::regclass::oid") != [before], "the copy took the table's place"
