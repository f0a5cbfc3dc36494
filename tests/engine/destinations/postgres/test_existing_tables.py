"""What is said beforehand of tables that somebody else made, and that it comes true when values arrive."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.destinations.postgres import PostgresDestination
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Finding
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases

pytestmark = pytest.mark.servers

TABLE = TableName("public", "t")
MOOD = PgType(99001, "public.mood", "enum", labels=("sad", "happy"))
INTS = PgType(1007, "integer[]", "array", PgType(23, "integer"))
TYPES = {
    name: PgType(oid, name)
    for oid, name in (
        (16, "boolean"), (20, "bigint"), (21, "smallint"), (23, "integer"), (25, "text"), (114, "json"),
        (1043, "character varying"), (1082, "date"), (1114, "timestamp without time zone"),
        (1184, "timestamp with time zone"), (1700, "numeric"), (2950, "uuid"), (3802, "jsonb"), (600, "point"),
    )
}  # fmt: skip


@pytest.fixture
def destination(databases: Databases) -> Database:
    return databases.destination


def judged(destination: Database, source: PgType, sql_type: str, there: str) -> list[Finding]:
    destination.execute(f"drop table if exists t; create table t (id int primary key, v {there})")
    columns = (Column("id", TYPES["integer"], "integer", not_null=True), Column("v", source, sql_type))
    return inspected(destination, TableSchema(TABLE, 1, columns, ("id",)))


def inspected(destination: Database, schema: TableSchema) -> list[Finding]:
    session = PostgresDestination(destination.uri, "shop")
    try:
        return session.inspect_table(schema)
    finally:
        session.shutdown()


def test_types(destination: Database) -> None:
    """Nothing said, a warning, an error."""
    destination.execute("create type mood as enum ('sad', 'happy'); create type grade as enum ('good')")
    destination.execute("create domain amount as numeric")
    for source, there, severity in (
        ("integer", "integer", None),
        ("integer", "bigint", None),
        ("integer", "numeric", None),
        ("integer", "amount", None),
        ("integer", "text", None),
        ("uuid", "text", None),
        ("timestamp without time zone", "timestamp with time zone", None),
        ("boolean", "varchar", None),
        ("bigint", "integer", "warning"),
        ("numeric", "integer", "warning"),
        ("numeric", "numeric(10,2)", "warning"),
        ("text", "varchar(10)", "warning"),
        ("integer", "varchar(10)", "warning"),
        ("text", "integer", "warning"),
        ("timestamp with time zone", "date", "warning"),
        ("bigint", "double precision", "warning"),
        ("numeric", "real", "warning"),
        ("json", "jsonb", "warning"),
        ("integer", "date", "error"),
        ("integer", "boolean", "error"),
        ("boolean", "integer", "error"),
        ("uuid", "json", "error"),
        ("integer", "integer[]", "error"),
        ("point", "numeric", "error"),
        ("date", "mood", "error"),
    ):
        found = [one.severity for one in judged(destination, TYPES[source], source, there)]
        assert found == ([] if severity is None else [severity]), (source, there)
    for pg_type, there, severity in (
        (MOOD, "mood", None),
        (MOOD, "text", None),
        (MOOD, "grade", "warning"),
        (MOOD, "integer", "error"),
        (INTS, "bigint[]", None),
        (INTS, "date[]", "error"),
        (INTS, "integer", "error"),
        (PgType(99002, "public.unheard_of"), "integer", "warning"),
    ):
        found = [one.severity for one in judged(destination, pg_type, pg_type.name, there)]
        assert found == ([] if severity is None else [severity]), (pg_type.name, there)


@pytest.mark.parametrize(
    ("source", "sql_type", "there", "rounded"),
    [
        ("numeric", "numeric(14,5)", "numeric(9,2)", True),
        ("numeric", "numeric", "integer", True),
        ("numeric", "numeric", "double precision", True),
        ("bigint", "bigint", "double precision", True),
        ("timestamp with time zone", "timestamp with time zone", "date", True),
        ("timestamp without time zone", "timestamp without time zone", "timestamp(0)", True),
        ("bigint", "bigint", "integer", False),
        ("text", "text", "varchar(3)", False),
        ("integer", "integer", "varchar(3)", False),
    ],
)
def test_whether_a_value_that_does_not_fit_is_rounded_or_an_error(
    destination: Database, source: str, sql_type: str, there: str, rounded: bool
) -> None:
    (found,) = judged(destination, TYPES[source], sql_type, there)
    said = "is refused, or rounded or cut off" if rounded else "makes the table Errored"
    assert found.problem.endswith(f"a value that does not fit {said}.")


def test_a_copy_warns_of_values_that_it_rounds(destination: Database, caplog: pytest.LogCaptureFixture) -> None:
    destination.execute("create table t (id int primary key, v date)")
    columns = (Column("id", TYPES["integer"], "integer"), Column("v", TYPES["timestamp with time zone"], "timestamptz"))
    session = PostgresDestination(destination.uri, "shop")
    session.begin_copy(Target("shop", TableSchema(TABLE, 1, columns, ("id",)), 1), 1)
    session.shutdown()
    assert "Values of public.t.v may be rounded or cut off: it is date in the destination" in caplog.text


def test_a_modifier_that_is_the_source_s_is_no_narrower(destination: Database) -> None:
    assert judged(destination, TYPES["numeric"], "numeric(10,2)", "numeric(10,2)") == []


def test_the_finding_names_both_types(destination: Database) -> None:
    (found,) = judged(destination, TYPES["integer"], "integer", "date")
    assert found.problem == (
        "Column v of public.t is date in the destination, which cannot take integer from the source."
    )
    assert found.kind is ErrorKind.SCHEMA


def test_a_column_that_is_missing(destination: Database) -> None:
    destination.execute("create table t (id int primary key)")
    columns = (Column("id", TYPES["integer"], "integer"), Column("v", TYPES["text"], "text"))
    (found,) = inspected(destination, TableSchema(TABLE, 1, columns, ("id",)))
    assert (found.problem, found.severity, found.kind) == (
        "public.t has no column v in the destination.",
        "error",
        ErrorKind.SCHEMA,
    )


def test_a_column_that_nothing_fills(destination: Database) -> None:
    filled = "a text not null default '', b int not null generated always as identity, c text"
    destination.execute(f"create table t (id int primary key, {filled}, d text not null)")
    (found,) = inspected(destination, TableSchema(TABLE, 1, (Column("id", TYPES["integer"], "integer"),), ("id",)))
    assert found.problem == "Column d of public.t in the destination is NOT NULL, and the source has nothing for it."
    assert (found.severity, found.kind) == ("error", ErrorKind.SCHEMA)


def test_a_table_that_is_not_there_and_nothing_is_made_by_looking(destination: Database) -> None:
    assert inspected(destination, TableSchema(TABLE, 1, (Column("id", TYPES["integer"], "integer"),), ("id",))) == []
    assert destination.execute("select nspname from pg_namespace where nspname like 'pgetl%'") == []
