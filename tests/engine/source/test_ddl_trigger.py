"""The event trigger: what its messages say of each command, where they stand in the WAL, and that it breaks nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.source import ddl_trigger
from airflow_provider_pgetl.engine.source.connecting import Connection, connect, connect_replication
from airflow_provider_pgetl.engine.source.ddl_trigger import DdlMessage, DescribedColumn
from airflow_provider_pgetl.engine.source.server import flushed_position
from airflow_provider_pgetl.engine.wal.pgoutput import LogicalMessage, decode
from airflow_provider_pgetl.testing.servers.postgres_servers import Database

FRAME = b"w" + bytes(24)
"""What stands before a message of pgoutput in a replication connection."""


class Watched:
    """A database with the trigger, and a slot that reads what its commands leave in the WAL."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self.execute = database.execute
        self.uri = database.uri
        self.connection = connection
        self.execute("create publication everything for all tables")
        self.execute("select pg_create_logical_replication_slot('reader', 'pgoutput')")
        ddl_trigger.install(connection)
        self.messages()

    def messages(self, *commands: str) -> list[DdlMessage]:
        """Runs the commands, each in a transaction of its own; returns the messages that came."""
        for command in commands:
            self.execute(command)
        return [DdlMessage.parse(one.content) for one in self._read() if one.content]

    def kinds(self, command: str) -> list[str]:
        """Runs the command; returns the kinds of what was sent, with names of DDL commands in place of messages."""
        self.execute(command)
        kinds = {b"I": "insert", b"U": "update", b"D": "delete"}
        found = [self._kind(payload, kinds) for payload in self._payloads() if payload[:1] in (b"M", *kinds)]
        return [*filter(None, found)]

    @staticmethod
    def _kind(payload: bytes, kinds: dict[bytes, str]) -> str:
        if payload[:1] in kinds:
            return kinds[payload[:1]]
        message = decode(FRAME + payload)
        assert isinstance(message, LogicalMessage)
        assert message.prefix == ddl_trigger.PREFIX
        assert message.transactional
        return DdlMessage.parse(message.content).command if message.content else ""

    def _read(self) -> list[LogicalMessage]:
        found = [decode(FRAME + payload) for payload in self._payloads() if payload[:1] == b"M"]
        return [one for one in found if isinstance(one, LogicalMessage)]

    def _payloads(self) -> list[bytes]:
        rows = self.connection.execute(
            "select data from pg_logical_slot_get_binary_changes('reader', null, null, 'proto_version', '1',"
            " 'publication_names', 'everything', 'messages', 'true')"
        ).fetchall()
        return [bytes(row[0]) for row in rows]

    def column(self, command: str, name: str) -> DescribedColumn:
        (message,) = self.messages(command)
        (table,) = message.tables
        (found,) = [column for column in table.columns if column.name == name]
        return found

    def oid(self, table: str) -> int:
        ((oid,),) = self.execute("select %s::regclass::oid::bigint", [table])
        return int(oid)


@pytest.fixture
def watched(source: Database, connection: Connection) -> Iterator[Watched]:
    source.execute("create table t (id int primary key, name text)")
    yield Watched(source, connection)
    source.execute("select pg_drop_replication_slot('reader')")


def test_a_table_is_described_as_it_is_after_the_command(watched: Watched) -> None:
    (message,) = watched.messages("alter table t add price numeric(8,2) not null default 1.50")
    (table,) = message.tables
    assert (message.command, table.schema, table.name, table.kind, table.identity) == (
        "ALTER TABLE",
        "public",
        "t",
        "r",
        "d",
    )
    assert (table.oid, table.key, table.ancestors) == (watched.oid("t"), (1,), ())
    assert [(column.attnum, column.name, column.type_name, column.not_null) for column in table.columns] == [
        (1, "id", "integer", True),
        (2, "name", "text", False),
        (3, "price", "numeric(8,2)", True),
    ]


@pytest.mark.parametrize(
    ("default", "missing"),
    [
        ("int default 7", "7"),
        ("text default 'a \"b\" {c}, \\d'", 'a "b" {c}, \\d'),
        ("text default ''", ""),
        ("int[] default '{1,null,3}'", "{1,NULL,3}"),
        ("timestamptz default '2024-01-02 03:04:05+00'", "2024-01-02 03:04:05+00"),
        ("interval default '1 day 2 hours'", "1 day 02:00:00"),
        ("float default 0.1::float + 0.2::float", "0.30000000000000004"),
    ],
)
def test_older_rows_have_a_constant_default(watched: Watched, default: str, missing: str) -> None:
    """In the form in which the engine reads values, whatever the settings of who alters the table."""
    settings = "set timezone = 'Asia/Tokyo'; set datestyle = 'SQL, DMY'; set intervalstyle = 'iso_8601'"
    found = watched.column(f"{settings}; alter table t add c {default}", "c")
    assert (found.has_missing, found.missing) == (True, missing)


def test_older_rows_are_null_without_a_default(watched: Watched) -> None:
    found = watched.column("alter table t add c int", "c")
    assert (found.has_missing, found.missing, found.default) == (False, None, None)


def test_a_rewrite_is_told_before_the_description(watched: Watched) -> None:
    rewrite, description = watched.messages("alter table t add c float default random()")
    assert (rewrite.rewritten, rewrite.tables) == (watched.oid("t"), ())
    assert description.rewritten is None
    (table,) = description.tables
    assert (table.columns[-1].has_missing, table.columns[-1].default) == (False, "random()")


def test_a_rename_keeps_the_attribute_number(watched: Watched) -> None:
    assert watched.column("alter table t rename name to title", "title").attnum == 2


def test_a_column_that_is_dropped_and_added_anew_has_another_number(watched: Watched) -> None:
    dropped, added = watched.messages("alter table t drop name", "alter table t add name text")
    assert [column.attnum for column in dropped.tables[0].columns] == [1]
    assert [column.attnum for column in added.tables[0].columns] == [1, 3]


def test_a_message_stands_between_the_changes_before_and_after_the_command(watched: Watched) -> None:
    assert watched.kinds(
        "begin; insert into t values (1, 'a'); alter table t add c int; insert into t values (2, 'b', 3);"
        " alter table t drop c; insert into t values (3, 'c'); commit"
    ) == ["insert", "ALTER TABLE", "insert", "ALTER TABLE", "insert"]


def test_also_in_subtransactions(watched: Watched) -> None:
    """There, PostgreSQL alone does not keep a message in its place before the next change."""
    assert watched.kinds(
        "begin; insert into t values (1, 'a'); savepoint s; alter table t add c int; release s;"
        " insert into t values (2, 'b', 3); savepoint s; alter table t drop c; insert into t values (3, 'c'); commit"
    ) == ["insert", "ALTER TABLE", "insert", "ALTER TABLE", "insert"]


def test_what_is_rolled_back_is_not_told(watched: Watched) -> None:
    assert watched.kinds("begin; alter table t add c int; rollback") == []
    assert watched.kinds(
        "begin; savepoint s; alter table t add c int; rollback to s; insert into t values (1, 'a'); commit"
    ) == ["insert"]


@pytest.mark.parametrize(
    ("command", "schema", "name"),
    [
        ("alter table t rename to u", "public", "u"),
        ("create schema other; alter table t set schema other", "other", "t"),
        ("alter schema public rename to elsewhere", "elsewhere", "t"),
    ],
)
def test_a_table_that_is_renamed_or_moved(watched: Watched, command: str, schema: str, name: str) -> None:
    oid = watched.oid("t")
    (message,) = watched.messages(command)
    assert [(table.oid, table.schema, table.name) for table in message.tables] == [(oid, schema, name)]


def test_tables_that_are_created_and_dropped(watched: Watched) -> None:
    (created,) = watched.messages("create table u (id int primary key)")
    assert [table.name for table in created.tables] == ["u"]
    (dropped,) = watched.messages("drop table u, t")
    assert set(dropped.dropped) >= {created.tables[0].oid}
    assert len(dropped.dropped) == 2
    (made,) = watched.messages("create table v as select 1 as id")
    assert [table.name for table in made.tables] == ["v"]


def test_partitions_are_described_with_the_tables_above_them(watched: Watched) -> None:
    watched.messages(
        "create table p (id int, at int) partition by range (at)",
        "create table p1 partition of p for values from (0) to (10) partition by list (at)",
        "create table p11 partition of p1 for values in (1)",
    )
    (message,) = watched.messages("alter table p add c int default 3")
    by_name = {table.name: table for table in message.tables}
    assert set(by_name) == {"p", "p1", "p11"}
    assert by_name["p11"].ancestors == (by_name["p1"].oid, by_name["p"].oid)
    assert by_name["p11"].columns[-1].missing == "3"
    (detached,) = watched.messages("alter table p detach partition p1")
    assert {table.name: table.ancestors for table in detached.tables}["p"] == ()


def test_types_tell_of_the_tables_that_have_them(watched: Watched) -> None:
    watched.messages("create type mood as enum ('sad')", "alter table t add feeling mood")
    (message,) = watched.messages("alter type mood add value 'happy'")
    assert [table.name for table in message.tables] == ["t"]


def test_a_publication_that_is_altered_is_named(watched: Watched) -> None:
    watched.messages("create publication chosen for table t")
    for command in (
        "alter publication chosen set (publish = 'insert')",
        "alter publication chosen drop table t",
        "alter publication chosen add table t (id)",
    ):
        messages = watched.messages(command)
        assert "chosen" in {name for message in messages for name in message.publications}, command


@pytest.mark.parametrize(
    "command",
    [
        "create temp table x (id int); alter table x add c int; drop table x",
        "create unlogged table x (id int); alter table x add c int",
        "create view x as select 1 as one; drop view x",
        "create index on t (name)",
        "alter sequence if exists x restart",
    ],
)
def test_what_is_never_replicated_is_not_told(watched: Watched, command: str) -> None:
    assert watched.messages(command) == []


def test_comments_are_told(watched: Watched) -> None:
    assert watched.column("comment on column t.name is 'of the customer'", "name").comment == "of the customer"
    (message,) = watched.messages("comment on table t is 'customers'")
    assert message.tables[0].comment == "customers"


def test_roles_without_privileges_alter_their_tables_as_before(
    watched: Watched, stranger: str, source: Database
) -> None:
    source.execute(f"create schema authorization stranger_{source.name}")
    with psycopg.connect(stranger, autocommit=True) as session:
        session.execute("create table mine (id int)")
        session.execute("set search_path = pg_temp, public")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("select pgetl_ddl.emit('{}')")
    assert [table.name for message in watched.messages() for table in message.tables] == ["mine"]


def test_an_error_in_the_trigger_leaves_the_command_alone(watched: Watched) -> None:
    watched.execute("drop function pgetl_ddl.emit")
    assert watched.messages("alter table t add c int", "create table u (id int)", "drop table u") == []
    assert watched.execute("select c from t") == []


def test_installing_again_replaces_it_and_removing_leaves_nothing(watched: Watched) -> None:
    ddl_trigger.install(watched.connection)
    found = ddl_trigger.installed(watched.connection)
    assert found is not None
    assert found.version == ddl_trigger.VERSION
    assert found.since is not None
    assert found.since <= flushed_position(watched.connection)
    assert len(watched.messages("alter table t add c int")) == 1
    assert ddl_trigger.remove(watched.connection)
    assert not ddl_trigger.remove(watched.connection)
    assert ddl_trigger.installed(watched.connection) is None
    assert watched.messages("alter table t add d int") == []
    assert watched.execute("select evtname from pg_event_trigger") == []


def test_a_trigger_that_is_switched_off_is_not_there(watched: Watched) -> None:
    assert described_since(watched) is not None
    watched.execute("alter event trigger pgetl_ddl_rewrite disable")
    assert described_since(watched) is None
    assert ddl_trigger.installed(watched.connection) is None


def described_since(watched: Watched) -> Boundary | None:
    replication = connect_replication(watched.uri, "test")
    try:
        return ddl_trigger.described_since(replication)
    finally:
        replication.finish()


def test_nothing_counts_as_described_while_a_transaction_of_before_is_open(
    watched: Watched, source: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have altered a table, and commit later."""
    monkeypatch.setattr(ddl_trigger, "_WAIT_TENTHS", 3)
    with source.connect(autocommit=False) as other:
        other.execute("alter table t add c int")
        with pytest.raises(PgetlError, match="a transaction has been open") as caught:
            ddl_trigger.install(watched.connection)
        assert "pgetl ddl install" in caught.value.remedy
        assert described_since(watched) is None
        other.rollback()
    ddl_trigger.install(watched.connection)
    assert described_since(watched) is not None
    watched.execute("comment on schema pgetl_ddl is 'pgetl: another version 2, from 0/1'")
    assert described_since(watched) is None


@pytest.mark.parametrize(
    ("command", "casts"),
    [
        ("alter table t alter id type bigint", True),
        ("  ALTER TABLE ONLY public.t\n ALTER id TYPE bigint ; ", True),
        ("alter table t alter id type bigint using id", False),
        ("alter table t alter id type bigint using id + 1", False),
        ("alter table t alter id type bigint, add c float default random()", False),
        ("alter table t alter id type bigint; select 1", False),
        ("do $$ begin execute 'alter table t alter id type bigint ' || 'us' || 'ing id + 1'; end $$", False),
        ("/* */ alter table t alter id type bigint", False),
        ("alter table t add c float default random()", False),
    ],
)
def test_whether_rows_are_only_cast(watched: Watched, command: str, casts: bool) -> None:
    rewrite, *_ = watched.messages(command)
    assert (rewrite.rewritten, rewrite.casts) == (watched.oid("t"), casts)


def test_a_role_that_may_not_install_it_is_told_what_to_do(stranger: str) -> None:
    with connect(stranger, "pgetl test") as connection, pytest.raises(PgetlError) as caught:
        ddl_trigger.install(connection)
    assert caught.value.kind is ErrorKind.PRIVILEGE
    assert "pgetl ddl script" in str(caught.value.remedy)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"version": 1}', b'{"version": 1, "tables": [1]}'])
def test_what_is_no_message_is_refused(content: bytes) -> None:
    with pytest.raises(PgetlError) as caught:
        DdlMessage.parse(content)
    assert caught.value.kind is ErrorKind.SCHEMA


def test_a_message_of_another_version_says_what_to_do() -> None:
    with pytest.raises(PgetlError, match="version 2") as caught:
        DdlMessage.parse(json.dumps({"version": 2, "command": "ALTER TABLE"}).encode())
    assert "pgetl ddl install" in str(caught.value.remedy)
