"""Each write knows whose table it writes to, and that it is the very table that was published."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_provider_pgetl.engine.destinations.postgres import PostgresDestination
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing.builders import Line, Replica, sample_schema
from airflow_provider_pgetl.testing.servers.postgres_servers import Database

SCHEMA = sample_schema()
FIRST: Line = (b"1", b"one", None)


@pytest.fixture
def source_server(server16: object) -> object:
    return server16


@pytest.fixture
def of_a(database: Database) -> Iterator[Replica]:
    """Pipeline a follows the table."""
    destination = PostgresDestination(database.uri, "a", "apply")
    yield Replica(destination, SCHEMA, pipeline="a").create(FIRST)
    destination.shutdown()


@pytest.fixture
def of_b(database: Database) -> Iterator[Replica]:
    destination = PostgresDestination(database.uri, "b", "copy")
    yield Replica(destination, SCHEMA, pipeline="b", replaces=True)
    destination.shutdown()


def names(database: Database) -> list[str]:
    return [name for (name,) in database.execute(f"select name from {SCHEMA.table.sql} order by 1")]


def change(replica: Replica, name: str) -> None:
    replica.apply(replica.wire().insert((name.encode().hex()[:4].encode(), name.encode(), None)).take())


def refusal(replica: Replica) -> PgetlError:
    """The same of a write with a change, of one that only moves the position, and of the question."""
    with pytest.raises(PgetlError) as caught:
        replica.apply(replica.wire().insert((b"99", b"lost", None)).take())
    with pytest.raises(PgetlError) as moved:
        replica.apply()
    lost = replica.destination.lost(replica.pipeline)  # type: ignore[attr-defined]  # Positions
    assert {moved.value.message, lost[SCHEMA.table].message} == {caught.value.message}
    assert caught.value.table == str(SCHEMA.table)
    return caught.value


def test_who_replaces_a_table_holds_it(database: Database, of_a: Replica, of_b: Replica) -> None:
    change(of_a, "11")
    of_b.create((b"1", b"of b", None))
    error = refusal(of_a)
    assert error.kind is ErrorKind.OCCUPIED
    assert "pipeline b has replaced it by its own copy" in error.message
    change(of_b, "22")
    assert names(database) == ["22", "of b"]
    assert of_b.destination.lost("b") == {}  # type: ignore[attr-defined]  # Positions


def test_a_table_is_not_replaced_within_a_write_to_it(database: Database, of_a: Replica, of_b: Replica) -> None:
    """Else the rest of the write would go into the other's table."""
    of_b.destination.begin_copy(of_b.target, 1)  # type: ignore[attr-defined]  # AtomicCopy
    of_b.stage(1, 0, [(b"1", b"of b", None)])
    finish = threading.Thread(target=of_b.destination.finish_copy, args=(of_b.target, 1, of_b.position))  # type: ignore[attr-defined]
    with database.connect(autocommit=False) as writer:
        writer.execute("select from pgetl.destination_table where pipeline = 'a' for no key update")
        finish.start()
        while not database.execute(_WAITS):
            assert finish.is_alive()
        assert names(database) == ["one"]
    finish.join()
    assert names(database) == ["of b"]


_WAITS = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'pgetl b copy'"
ALTERED = {
    "dropped": ("drop table {}", "was dropped in the destination"),
    "renamed": ("alter table {} rename to elsewhere", "was dropped in the destination"),
    "created again": ("drop table {0}; create table {0} (id int8 primary key, name text, note text)", "not the table"),
    "made unlogged": ("alter table {} set unlogged", "a crash of the server empties it"),
    "column dropped": ("alter table {} drop column note", "note text became nothing"),
    "type changed": ("alter table {} alter column name type varchar(3)", "name text became name character varying(3)"),
    "type narrowed": ("alter table {} alter column id type int", "id bigint became id integer"),
    "column made anew": (
        "alter table {0} drop column note; alter table {0} add note text",
        "note text became note text",
    ),
}


@pytest.mark.parametrize(("statement", "said"), ALTERED.values(), ids=ALTERED.keys())
def test_a_table_that_was_altered_by_hand(database: Database, of_a: Replica, statement: str, said: str) -> None:
    change(of_a, "11")
    database.execute(statement.format(SCHEMA.table.sql))
    error = refusal(of_a)
    assert error.kind is ErrorKind.SCHEMA
    assert said in error.message


def test_a_partition_that_a_crash_empties(database: Database, of_a: Replica) -> None:
    database.execute("create table parts (id bigint primary key, name text, note text) partition by range (id)")
    database.execute("create unlogged table part partition of parts default")
    parts = Replica(of_a.destination, replace(SCHEMA, table=TableName("public", "parts")), "a").create(FIRST)
    with pytest.raises(PgetlError, match="a crash of the server empties it"):
        parts.apply(parts.wire().insert((b"99", b"lost", None)).take())
    database.execute("alter table part set logged")
    parts.apply(parts.wire().insert((b"99", b"there", None)).take())


def test_what_does_not_concern_the_published_columns_may_be_altered(database: Database, of_a: Replica) -> None:
    statements = (
        "alter table {} add noted timestamptz default now()",
        "create index on {} (name)",
        "alter table {} alter column name set statistics 10",
        "comment on table {} is 'mine'",
        "vacuum full {}",
        "alter table {} drop column noted",
    )
    for number, statement in enumerate(statements):
        database.execute(statement.format(SCHEMA.table.sql))
        change(of_a, f"{number + 20}")
    assert len(names(database)) == 7


def test_a_new_copy_takes_the_table_back(database: Database, of_a: Replica, of_b: Replica) -> None:
    of_b.create((b"1", b"of b", None))
    again = Replica(of_a.destination, SCHEMA, "a", generation=2, replaces=True)
    again.copy(2, FIRST)
    change(again, "11")
    assert "pipeline a has replaced it" in refusal(of_b).message
    assert names(database) == ["11", "one"]


def test_rows_in_a_table_made_in_its_place_are_not_replaced(database: Database, of_a: Replica) -> None:
    database.execute(f"drop table {SCHEMA.table.sql}; create table {SCHEMA.table.sql} as select 7 as id")
    with pytest.raises(PgetlError, match="holds rows that pgetl did not write"):
        of_a.destination.begin_copy(Replica(of_a.destination, SCHEMA, "a", generation=2).target, 2)  # type: ignore[attr-defined]
