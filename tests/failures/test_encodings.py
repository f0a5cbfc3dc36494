"""Databases that are not in UTF8: what can be converted arrives, and a text that cannot concerns its table alone."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.engine.postgres.recoding import CODECS
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases, Server
from tests.failures.pipeline import PipelineUnderTest

pytestmark = pytest.mark.servers

_numbers = itertools.count()


def create(server: Server, encoding: str) -> Database:
    name = f"encoded_{os.getpid()}_{next(_numbers)}"
    with server.connect() as session:
        statement = f"create database {name} template template0 encoding '{encoding}' lc_collate 'C' lc_ctype 'C'"
        session.execute(statement.encode())
    return Database(server, name)


@pytest.fixture
def shop(
    request: pytest.FixtureRequest, server16: Server, state_database: Database, tmp_path: Path
) -> Iterator[PipelineUnderTest]:
    """Source and destination in these encodings."""
    databases = Databases(*(create(server16, encoding) for encoding in request.param))
    pipeline = PipelineUnderTest(databases, state_database, tmp_path)
    pipeline.fill()
    yield pipeline
    pipeline.close()
    for database in databases:
        server16.drop_database(database.name)


def store(database: Database, where: str, raw: str) -> None:
    """These bytes, as an application does that is in the database's own encoding."""
    with database.connect(client_encoding="SQL_ASCII") as session:
        session.execute(f"update items set what = E'{raw}' where {where}".encode())


def texts(database: Database) -> list[tuple[object, ...]]:
    with database.connect(client_encoding="UTF8") as session:
        return session.execute("select id, what from items order by id").fetchall()


@pytest.mark.parametrize(
    ("shop", "bad"),
    [(("SQL_ASCII", "UTF8"), r"caf\xe9"), (("WIN1252", "UTF8"), r"\x81")],
    indirect=["shop"],
    ids=["SQL_ASCII", "WIN1252"],
)
def test_a_text_that_is_not_valid_concerns_its_table_alone(shop: PipelineUnderTest, bad: str) -> None:
    """And when it is corrected, a rollback is all that is needed."""
    umlaut = r"Gr\xc3\xb6\xc3\x9fe" if bad.startswith("caf") else r"Gr\xf6\xdfe"
    with shop.follow() as running:
        store(shop.source, "id = 1", umlaut)
        shop.source.execute("update items set what = 'many' || id where id > 5")
        running.until(shop.arrives("select 1 from items where id = 1 and what = 'Größe'"), "it arrived")
        store(shop.source, "id = 2", bad)
        running.until(lambda: shop.phases()["public.items"] == "Errored", "the table was Errored")
        shop.source.execute("insert into orders values (9999, 'goes on', 1)")
        running.until(shop.arrives("select 1 from orders where id = 9999"), "the other table went on")
        running.stop()
    store(shop.source, "id = 2", "better")
    shop.pgetl("rollback", "public.items").assert_well()
    assert shop.catch_up().code == 0
    assert set(shop.phases().values()) == {"Ready"}
    assert len(texts(shop.destination)) == 50
    assert texts(shop.destination)[:2] == [(1, "Größe"), (2, "better")]


@pytest.mark.parametrize("shop", [("LATIN1", "UTF8")], indirect=True)
def test_names_of_types_and_of_origins(shop: PipelineUnderTest) -> None:
    """The stream names the types of a table's columns, and where a transaction that was replicated comes from."""
    with shop.source.connect(client_encoding="UTF8") as session:
        session.execute("create type \"größe\" as enum ('größer')")
        session.execute('alter table items add column "maß" "größe"')
        session.execute("select pg_replication_origin_create('münchen')")
    with shop.follow() as running:
        with shop.source.connect(client_encoding="UTF8") as session:
            session.execute("select pg_replication_origin_session_setup('münchen')")
            session.execute("update items set \"maß\" = 'größer', what = 'arrived' where id = 1")
        running.until(shop.arrives("select 1 from items where what = 'arrived'"), "it arrived")
        running.stop()
    with shop.source.connect(client_encoding="UTF8") as session:
        session.execute("select pg_replication_origin_drop('münchen')")
    with shop.destination.connect(client_encoding="UTF8") as session:
        assert session.execute('select "maß"::text from items where id = 1').fetchone() == ("größer",)


@pytest.mark.parametrize("shop", [("UTF8", "LATIN1")], indirect=True)
def test_a_destination_that_cannot_hold_a_text(shop: PipelineUnderTest) -> None:
    with shop.follow() as running:
        shop.source.execute("update items set what = 'Größe' where id = 1")
        running.until(shop.arrives("select 1 from items where what like 'Gr%e'"), "it arrived")
        shop.source.execute("update items set what = '10 €' where id = 2")
        running.until(lambda: shop.phases()["public.items"] == "Errored", "the table was Errored")
        shop.source.execute("insert into orders values (9999, 'goes on', 1)")
        running.until(shop.arrives("select 1 from orders where id = 9999"), "the other table went on")


def test_the_codecs_convert_as_the_server_does(server16: Server) -> None:
    statement = """create function pg_temp.converted(raw bytea, encoding name) returns text language plpgsql as $$
        begin return convert_from(raw, encoding); exception when others then return null; end $$"""
    with server16.connect() as session:
        session.execute(statement.encode())
        for encoding, codec in CODECS.items():
            if encoding != "SQL_ASCII":
                for byte in range(1, 256):
                    raw = bytes([byte])
                    ((there,),) = session.execute("select pg_temp.converted(%s, %s)", (raw, encoding)).fetchall()
                    here = raw.decode(codec, errors="ignore") or None
                    assert here == there, (encoding, byte)
