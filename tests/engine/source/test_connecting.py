"""Sessions on the source: pinned, named, and honest about why they could not be had."""

import socket
import traceback
from contextlib import closing

import pytest
from psycopg import pq

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.postgres.sessions import SETTINGS
from airflow_provider_pgetl.engine.source.connecting import (
    Connection,
    command,
    connect,
    connect_replication,
    server_errors,
    worker_name,
)
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.raising import raises

UNREADABLE = "postgresql://ann@db/shop?hunter2=1"


def settings(rows: list[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in rows}


def expected(version: int) -> dict[str, str]:
    known = dict(SETTINGS)
    if version < 170000:
        del known["transaction_timeout"]
    return known


ALL = "select lower(name), current_setting(name) from pg_settings where lower(name) = any('{%s}')"


@pytest.fixture
def hostile(source: Database) -> Database:
    """A database whose settings would spoil values and end sessions."""
    for setting in (
        "datestyle = 'German'",
        "intervalstyle = 'iso_8601'",
        "timezone = 'Asia/Tokyo'",
        "bytea_output = 'escape'",
        "statement_timeout = '7s'",
        "idle_in_transaction_session_timeout = '7s'",
        "idle_session_timeout = '7s'",
        "lock_timeout = '7s'",
        "search_path = 'nowhere'",
        "extra_float_digits = 0",
        "default_transaction_read_only = on",
    ):
        source.execute(f"alter database {source.name} set {setting}")
    return source


def test_statements_run_under_pinned_settings(hostile: Database) -> None:
    with connect(hostile.uri, "pgetl shop copy") as connection:
        wanted = expected(connection.info.server_version)
        rows = connection.execute((ALL % ",".join(wanted)).encode()).fetchall()
    assert settings(rows) == wanted


def test_replication_runs_under_the_same_settings(hostile: Database) -> None:
    pgconn = connect_replication(hostile.uri, "pgetl shop apply")
    wanted = expected(pgconn.server_version)
    rows = command(pgconn, ALL % ",".join(wanted), "Settings could not be read")
    pgconn.finish()
    assert settings([(str(name), str(value)) for name, value in rows]) == wanted


def test_sessions_are_known_by_pipeline_and_worker(source: Database) -> None:
    with (
        connect(source.uri, worker_name("shop", "copy")),
        closing(_Closing(connect_replication(source.uri, worker_name("shop", "apply")))),
    ):
        names = source.execute("select application_name from pg_stat_activity where application_name like 'pgetl %'")
    assert set(names) >= {("pgetl shop copy",), ("pgetl shop apply",)}


class _Closing:
    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self.close = pgconn.finish


def test_a_long_name_is_cut_at_a_character() -> None:
    assert worker_name("shop", "ä" * 40) == "pgetl shop " + "ä" * 26


def test_parameters_of_the_uri_pass_through(source: Database) -> None:
    with connect(f"{source.uri}?keepalives_idle=3&options=-c%20work_mem%3D77MB", "pgetl test") as connection:
        assert connection.info.get_parameters()["keepalives_idle"] == "3"
        assert connection.info.get_parameters()["keepalives"] == "1"
        assert connection.execute("show work_mem").fetchone() == ("77MB",)


def test_tls_is_asked_for_where_the_uri_says_so(source: Database) -> None:
    with raises(ErrorKind.AUTHENTICATION, match="does not support SSL"):
        connect(f"{source.uri}?sslmode=require", "pgetl test")


@pytest.mark.parametrize("opening", [connect, connect_replication])
class TestWhyNot:
    def test_a_wrong_password_names_server_and_user(self, opening: type[Connection], source: Database) -> None:
        uri = source.server.uri(source.name, password="hunter2")
        with raises(ErrorKind.AUTHENTICATION) as caught:
            opening(uri, "pgetl test")
        assert f"postgres@127.0.0.1:{source.server.port}/{source.name}" in caught.value.message
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))

    def test_a_server_that_is_down(self, opening: type[Connection], source: Database) -> None:
        with closing(socket.socket()) as unused:
            unused.bind(("127.0.0.1", 0))
            uri = source.uri.replace(str(source.server.port), str(unused.getsockname()[1]))
            with pytest.raises(PgetlError, match=r"Connection refused\.") as caught:
                opening(uri, "pgetl test")
        assert caught.value.kind is ErrorKind.CONNECTION
        assert caught.value.transient

    def test_a_database_that_is_not_there(self, opening: type[Connection], source: Database) -> None:
        with raises(ErrorKind.NO_DATABASE, match='database "nowhere" does not exist'):
            opening(source.server.uri("nowhere"), "pgetl test")

    def test_a_uri_that_cannot_be_read_is_not_quoted(self, opening: type[Connection], source: Database) -> None:
        uri = UNREADABLE
        with pytest.raises(PgetlError, match="cannot be read") as caught:
            opening(uri, "pgetl test")
        assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_a_role_that_may_not_replicate(stranger: str) -> None:
    with raises(ErrorKind.PRIVILEGE) as caught:
        connect_replication(stranger, "pgetl test")
    assert "REPLICATION" in caught.value.remedy


def test_a_servers_error_says_what_was_being_done_and_to_which_table(connection: Connection) -> None:
    with (
        pytest.raises(PgetlError, match=r'^Sizes could not be read: relation "nowhere" does not exist\. ') as caught,
        server_errors("Sizes could not be read", "public.nowhere"),
    ):
        connection.execute("select from nowhere")
    assert (caught.value.kind, caught.value.table) == (ErrorKind.SCHEMA, "public.nowhere")
