"""With the event trigger of the source: each ALTER is known exactly, at its place in the stream, whether or not a row
follows it, and whatever was altered since."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases
from tests.comparing import differences
from tests.failures.pipeline import PipelineUnderTest
from tests.failures.test_added_columns import reasons, verified
from tests.shop import ShopTable

pytestmark = pytest.mark.servers

PLAIN = ShopTable(
    "public.plain",
    """create table public.plain (id int primary key, n smallint, r real, note text);
       insert into public.plain select n, n, 0.1 * n, 'note' from generate_series(1, 50) n""",
)
PARTED = ShopTable(
    "public.parted",
    """create table public.parted (id int primary key, n smallint, r real, note text) partition by range (id);
       create table public.parted_1 partition of public.parted for values from (0) to (20);
       create table public.parted_2 partition of public.parted for values from (20) to (1000);
       insert into public.parted select n, n, 0.1 * n, 'note' from generate_series(1, 50) n""",
)
EVERY = (PLAIN, PARTED)
MANY = (
    "alter table {0} alter n type int",
    "update {0} set n = n + 100000 where id < 5",
    "alter table {0} alter n type bigint",
    "alter table {0} add a int default 5",
    "alter table {0} rename a to b",
    "alter table {0} rename b to c",
    "alter table {0} add gone int; alter table {0} drop gone",
    "alter table {0} add d real default 0.1",
    "alter table {0} alter r type double precision",
    "alter table {0} alter d type double precision",
    "alter table {0} drop note",
    "alter table {0} alter c set default 7",
    "alter table {0} alter c set not null",
    "alter table {0} add e timestamptz default '2026-01-02 03:04:05+02'",
    "insert into {0} values (60, 5000000000, 0.3, 6, 0.7)",
    "update {0} set n = n + 5000000000, r = r / 3 where id % 2 = 0",
)


@pytest.fixture
def tables(databases: Databases, state_database: Database, tmp_path: Path) -> Iterator[PipelineUnderTest]:
    pipeline = PipelineUnderTest(databases, state_database, tmp_path, "shop", EVERY)
    pipeline.declared = tuple(one.name for one in EVERY)
    for one in EVERY:
        databases.source.execute(one.create)
    yield pipeline
    pipeline.close()


def alter(pipeline: PipelineUnderTest, *statements: str) -> None:
    pipeline.source.execute("set timezone = 'Asia/Tokyo'")
    for statement in statements:
        for one in EVERY:
            pipeline.source.execute(statement.format(one.table.name))


def in_a_lake(pipeline: PipelineUnderTest) -> None:
    pipeline.place = f'type = "delta"\nuri = "{pipeline.folder}/lake"'
    pipeline.more = '[stream]\nmin_interval = "200ms"'


@pytest.mark.parametrize(
    ("source_server", "place"),
    [pytest.param(15, "postgres", marks=pytest.mark.slow), (16, "delta"), (18, "postgres")],
    indirect=["source_server"],
)
def test_many_alters_before_any_is_read(tables: PipelineUnderTest, place: str) -> None:
    """Without the trigger, the first ones could not be told from the last ones, nor from others that compute values."""
    if place == "delta":
        in_a_lake(tables)
    tables.ddl("install").assert_well()
    with tables.follow() as run:
        with run.stands_still():
            alter(tables, *MANY)
        run.until(lambda: reasons(tables) or verified(tables), "the tables are equal")
        assert reasons(tables) == {}
        tables.source.execute("alter table plain alter id type bigint")
        alter(tables, "update {0} set id = id + 200 where id = 7")
        run.until(lambda: reasons(tables) or verified(tables), "its key is wider")
        run.stop()
    alter(tables, "alter table {0} add f int default 8", "alter table {0} rename f to g", "alter table {0} drop c")
    tables.environment["PGETL_FAILPOINT"] = "schema.stored:2"
    assert tables.catch_up().code == -signal.SIGKILL
    del tables.environment["PGETL_FAILPOINT"]
    tables.catch_up().assert_well()
    alter(tables, "insert into {0} (id, n) values (61, 1)")
    tables.catch_up().assert_well()
    assert verified(tables)
    assert [tables.copies(one.name) for one in EVERY] == [1, 1]
    if place == "postgres":
        assert not differences(tables.databases, EVERY)


def test_in_one_transaction_and_taken_back(tables: PipelineUnderTest) -> None:
    tables.ddl("install").assert_well()
    tables.catch_up().assert_well()
    statements = """
        insert into plain values (60, 1, 1, 'none'); alter table plain alter n type int;
        insert into plain values (61, 100000, 1, 'int'); alter table plain rename note to word;
        savepoint s; alter table plain alter n type bigint; update plain set n = 5000000000; rollback to s;
        update plain set word = 'again' where id < 5;
        savepoint t; alter table plain add a int default 3; insert into plain values (62, 2, 2, 'a'); release t;
        alter table plain alter n type bigint; insert into plain values (63, 5000000000, 3, 'long', 4);
        alter table plain rename a to b; alter table plain drop word; delete from plain where id = 50"""
    with tables.source.connect(autocommit=False) as session:
        for statement in statements.split(";"):
            session.execute(statement.encode())
        session.rollback()
        for statement in statements.split(";"):
            session.execute(statement.encode())
        session.commit()
    for failpoint in ("schema.stored:3", "apply.write_done"):
        tables.environment["PGETL_FAILPOINT"] = failpoint
        said = tables.catch_up()
        assert said.code == -signal.SIGKILL, said.err
    del tables.environment["PGETL_FAILPOINT"]
    tables.catch_up().assert_well()
    assert not differences(tables.databases, EVERY)
    assert tables.copies("public.plain") == 1


UNFIT = {
    "alter table plain alter n type smallint using n + 1": "an ALTER may have changed values in all rows",
    "alter table plain drop r, alter n type smallint using n + 1": "an ALTER may have changed values in all rows",
    "alter table plain alter n type bigint using n * 2": "what existing rows have in n may be other values",
    "alter table plain drop note, add note text": "note was dropped and added again",
    "alter table plain add c float default random()": "what existing rows have in c is not in the WAL",
}


@pytest.mark.parametrize("statement", UNFIT)
def test_what_cannot_be_carried_over_is_known_without_a_row(tables: PipelineUnderTest, statement: str) -> None:
    """And without a look at the catalog, which would come later."""
    tables.environment |= {"TEST_WATCH_SECONDS": "1e6", "TEST_WATCH_AGAIN_SECONDS": "1e6"}
    tables.ddl("install").assert_well()
    with tables.follow() as run:
        tables.source.execute("update plain set r = 7 where id = 7")
        tables.source.execute(statement)
        run.until(lambda: reasons(tables), "it is Errored", 30.0)
        assert UNFIT[statement] in reasons(tables)["public.plain"]
        run.stop()
    assert reasons(tables).keys() == {"public.plain"}


def test_what_was_altered_before_the_trigger_and_when_it_comes_and_goes(tables: PipelineUnderTest) -> None:
    """The same pipeline with and without it: what only the one or the other is sent is no other history."""
    tables.catch_up().assert_well()
    tables.source.execute("alter table plain alter n type smallint using n + 1")
    tables.source.execute("alter table parted add before int default 1")
    tables.ddl("install").assert_well()
    assert tables.catch_up().code == 4
    assert "an ALTER may have changed values" in reasons(tables)["public.plain"]
    tables.pgetl("reset", "public.plain").assert_well()
    tables.catch_up().assert_well()
    for action in ("remove", "install", "remove"):
        tables.source.execute("create table other (id int); alter table other add c int; drop table other")
        alter(tables, f"alter table {{0}} add {action}_{len(tables.started)} int default 2")
        tables.catch_up().assert_well()
        tables.source.execute("create table other (id int); alter table other add c int; drop table other")
        alter(tables, "insert into {0} (id) select max(id) + 1 from {0}")
        tables.catch_up().assert_well()
        tables.ddl(action).assert_well()
    assert not differences(tables.databases, EVERY)
    assert [tables.copies(one.name) for one in EVERY] == [2, 1]


def test_the_trigger_is_printed_and_needs_a_role_that_may_install_it(tables: PipelineUnderTest) -> None:
    script = tables.ddl("script")
    script.assert_well()
    assert "CREATE EVENT TRIGGER pgetl_ddl_end" in script.out
    assert tables.ddl("remove").out == "There was no event trigger.\n"
    role = f"plain_{tables.source.name}"
    tables.source.execute(f"create role {role} login password 'hunter2'")
    try:
        tables.environment["PLAIN"] = tables.source.server.uri(tables.source.name, role, "hunter2")
        said = tables.ddl("install", "--as", "env:PLAIN")
        assert said.code == 3
        assert "pgetl ddl script" in said.complaint
    finally:
        tables.source.execute(f"drop role {role}")
