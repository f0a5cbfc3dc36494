"""A session says what went wrong in pgetl's terms, and comes back after its connection is gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_pgetl.engine.destinations.postgres import PostgresDestination
from airflow_provider_pgetl.engine.destinations.postgres.session import Session, Statement, application_name
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing.builders import Replica
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.raising import raises

TABLE = TableName("public", "t")


@pytest.fixture
def session(database: Database) -> Iterator[Session]:
    opened = Session(database.uri, application_name("shop", "apply"))
    yield opened
    opened.close()


@pytest.fixture
def plain_uri(database: Database) -> Iterator[str]:
    """The URI of a role that may create in the database and nothing else."""
    role = f"plain_{database.name}"
    database.execute(f"create role {role} login password 'p'")
    database.execute(f"grant create on database {database.name} to {role}")
    yield database.server.uri(database.name, role, "p")
    database.execute(f"drop owned by {role} cascade")
    database.execute(f"drop role {role}")


def test_settings_of_the_server_do_not_matter(database: Database, session: Session) -> None:
    for setting in (
        "datestyle = 'German, DMY'",
        "statement_timeout = '1s'",
        "extra_float_digits = 0",
        "timezone = 'Asia/Tokyo'",
        "synchronous_commit = off",
    ):
        database.execute(f"alter database {database.name} set {setting}")
    names = (
        "application_name",
        "datestyle",
        "statement_timeout",
        "extra_float_digits",
        "timezone",
        "session_replication_role",
        "synchronous_commit",
    )
    found = [session.rows("select current_setting($1)", (name,))[0][0] for name in names]
    assert found == ["pgetl shop apply", "ISO, MDY", "0", "3", "UTC", "replica", "on"]


def test_a_long_pipeline_name_is_cut_between_characters() -> None:
    assert len(application_name("ü" * 60, "apply").encode()) <= 63


def test_a_failing_statement_among_many_is_named_and_those_before_it_are_answered(session: Session) -> None:
    statements = [Statement("select 1"), Statement("select 1/0", table=TABLE), Statement("select 2")]
    answers = []
    with raises(ErrorKind.VALUE, "public.t", match="division by zero"):
        answers.extend(session.run(statements))
    assert [answer.rows for answer in session.run([statements[0], statements[2]])] == [[("1",)], [("2",)]]


def test_a_statement_that_cannot_be_prepared_is_named(session: Session) -> None:
    with raises(ErrorKind.SCHEMA, "public.t"):
        list(session.run([Statement("select 1"), Statement("select * from nothing", table=TABLE)]))
    assert [answer.rows for answer in session.run([Statement("select 1")])] == [[("1",)]]


def test_more_statements_than_the_server_should_keep(session: Session) -> None:
    for start in range(0, 1200, 100):
        found = [
            answer.rows[0][0] for answer in session.run([Statement(f"select {n}") for n in range(start, start + 100)])
        ]
        assert found == [str(n) for n in range(start, start + 100)]
    assert session.rows("select count(*) from pg_prepared_statements")[0][0] <= 600


def test_values_larger_than_any_buffer(session: Session) -> None:
    big = b"x" * (8 << 20)
    answers = session.run([Statement("select length($1::text), $1", [big], [0]) for _ in range(4)])
    assert [(row[0], len(row[1] or "")) for answer in answers for row in answer.rows] == [(str(8 << 20), 8 << 20)] * 4


def test_passing_trouble_is_no_table_s_fault(database: Database, session: Session) -> None:
    session.execute("create table public.t (id int)")
    with database.connect(autocommit=False) as other:
        other.execute("lock table t")
        session.execute("set lock_timeout = 50")
        with pytest.raises(PgetlError) as caught:
            session.execute("insert into public.t values (1)", table=TABLE)
    assert (caught.value.transient, caught.value.table) == (True, None)


def test_a_broken_connection_is_replaced(database: Database, session: Session) -> None:
    database.execute("select pg_terminate_backend(%s, 5000)", (session.rows("select pg_backend_pid()")[0][0],))
    with raises(ErrorKind.CONNECTION):
        session.rows("select 1")
    assert session.rows("select 1") == [(1,)]


def test_a_wrong_password_is_told_from_an_absent_server(database: Database) -> None:
    refused = PostgresDestination(database.server.uri(database.name, password="wrong"), "shop", "apply")
    with raises(ErrorKind.AUTHENTICATION) as caught:
        refused.positions("shop")
    assert "wrong" not in str(caught.value)
    absent = PostgresDestination("postgresql://postgres:secret@127.0.0.1:1/postgres", "shop", "apply")
    with raises(ErrorKind.CONNECTION) as caught:
        absent.positions("shop")
    assert "secret" not in str(caught.value)
    with pytest.raises(PgetlError):
        absent.inspect()


def test_an_unreadable_uri_is_not_quoted() -> None:
    with pytest.raises(PgetlError) as caught:
        PostgresDestination("postgresql://u:secret@host:port/x", "shop", "apply").positions("shop")
    assert "secret" not in str(caught.value)


def test_a_plain_role_is_told_what_it_lacks_and_can_work_all_the_same(database: Database, plain_uri: str) -> None:
    destination = PostgresDestination(plain_uri, "shop", "apply")
    findings = destination.inspect()
    assert [finding.severity for finding in findings] == ["warning"]
    assert "session_replication_role" in findings[0].problem
    replica = Replica(destination, pipeline="shop").create((b"1", b"a", None))
    replica.apply(replica.wire().insert((b"2", b"b", None)).take())
    assert len(database.execute(f"select 1 from {replica.schema.table.sql}")) == 2
    destination.shutdown()


def test_a_role_that_may_not_create_is_told_so(database: Database, plain_uri: str) -> None:
    role = f"plain_{database.name}"
    database.execute(f"revoke create on database {database.name} from {role}")
    destination = PostgresDestination(plain_uri, "shop", "apply")
    remedy = f'GRANT CREATE ON DATABASE "{database.name}" TO "{role}".'
    assert (remedy, "error") in [(finding.remedy, finding.severity) for finding in destination.inspect()]
    with raises(ErrorKind.PRIVILEGE):
        destination.claim("shop", 1)
    destination.shutdown()
