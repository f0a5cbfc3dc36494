"""No setting that a database or a role has for other people's sessions reaches one of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import psycopg
import pytest

from airflow_provider_pgetl.engine.destinations.postgres.session import Session
from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.engine.postgres.sessions import SETTINGS, connection_failure, of_the_primary
from airflow_provider_pgetl.engine.source.connecting import command, connect, connect_replication
from airflow_provider_pgetl.engine.state.state_database import StateDatabase
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases, Server

# A value of each setting that would do harm, or is at least not ours.
HOSTILE: Mapping[str, str] = {
    "array_nulls": "off",
    "backslash_quote": "on",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "datestyle": "German, DMY",
    "default_transaction_deferrable": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "exit_on_error": "on",
    "extra_float_digits": "-15",
    "gin_fuzzy_search_limit": "1",
    "idle_in_transaction_session_timeout": "60000",
    "idle_session_timeout": "60000",
    "intervalstyle": "iso_8601",
    "lc_monetary": "POSIX",
    "lock_timeout": "60000",
    "quote_all_identifiers": "on",
    "restrict_nonsystem_relation_kind": "view",
    "row_security": "on",
    "search_path": "nowhere",
    "standard_conforming_strings": "off",
    "statement_timeout": "60000",
    "synchronous_commit": "off",
    "timezone": "Asia/Tokyo",
    "timezone_abbreviations": "India",
    "transaction_timeout": "60000",
    "transform_null_equals": "on",
    "xmlbinary": "hex",
    "xmloption": "document",
}

# What else a session may be set to in the chapters of the manual that say what statements mean. Reviewed: none of it
# changes what is read or stored. A later version's settings are to be judged when they come.
_CHAPTERS = ("Client Connection Defaults", "Version and Platform Compatibility", "Error Handling", "Customized Options")
HARMLESS = frozenset(
    {
        # where and how new tables are stored: the choice of whoever runs the destination
        *("default_table_access_method", "default_tablespace", "default_toast_compression", "temp_tablespaces"),
        # text search, to_char(), messages: nothing that we call, and nothing that an immutable expression may depend on
        *("default_text_search_config", "lc_messages", "lc_numeric", "lc_time", "icu_validation_level"),
        *("client_min_messages", "escape_string_warning"),
        # libraries
        *("dynamic_library_path", "extension_control_path", "local_preload_libraries", "session_preload_libraries"),
        # triggers at the destination; `Session` silences those that it may silence
        *("session_replication_role", "event_triggers"),
        # functions, roles, large objects: we make none
        *("check_function_bodies", "createrole_self_grant", "lo_compat_privileges"),
        # of the transaction, whose defaults are pinned
        *("transaction_deferrable", "transaction_isolation", "transaction_read_only"),
        # how fast something is, or in which order rows come
        *("gin_pending_list_limit", "synchronize_seqscans", "vacuum_freeze_min_age", "vacuum_freeze_table_age"),
        *("vacuum_failsafe_age", "vacuum_multixact_failsafe_age", "vacuum_multixact_freeze_min_age"),
        *("vacuum_multixact_freeze_table_age",),
    }
)

Read = Callable[[str], Mapping[str, str]]
_NAMES = [*SETTINGS, "synchronous_commit"]
_ASK = f"select name, current_setting(name, true) from unnest(array{_NAMES}) name"


def of_source(uri: str) -> Mapping[str, str]:
    with connect(uri, "pgetl test") as session:
        return dict(session.execute(_ASK.encode()).fetchall())


def of_stream(uri: str) -> Mapping[str, str]:
    session = connect_replication(uri, "pgetl test")
    try:
        return {str(name): str(value) for name, value in command(session, _ASK, "asked")}
    finally:
        session.finish()


def of_destination(uri: str) -> Mapping[str, str]:
    session = Session(uri, "pgetl test")
    try:
        return dict(session.rows(_ASK))
    finally:
        session.close()


def of_state(uri: str) -> Mapping[str, str]:
    with StateDatabase.parse(uri).connect("pgetl test") as session:
        return dict(session.execute(_ASK.encode()).fetchall())


@pytest.fixture(params=["role", "database", "role in database"])
def hostile(request: pytest.FixtureRequest, databases: Databases) -> Iterator[Database]:
    """Everything is set otherwise, for the role `hostile`, or for all in the database."""
    database, role = databases.destination, f"hostile_{databases.destination.name}"
    whose = {"role": f"role {role}", "database": f"database {database.name}"}
    whose["role in database"] = f"role {role} in database {database.name}"
    known = {name.lower() for (name,) in database.execute("select name from pg_settings")}
    with database.server.connect() as elsewhere:
        elsewhere.execute(f"create role {role} login superuser password 'p'".encode())
        for name, value in HOSTILE.items():
            if name in known:
                elsewhere.execute(f"alter {whose[request.param]} set {name} = '{value}'".encode())
    yield database
    with database.server.connect() as elsewhere:
        elsewhere.execute(f"alter database {database.name} reset all".encode())
        elsewhere.execute(f"drop role {role}".encode())


def test_every_session_is_set_as_we_want_it(hostile: Database) -> None:
    assert HOSTILE.keys() == {*_NAMES}
    uri = hostile.server.uri(hostile.name, f"hostile_{hostile.name}", "p")
    wanted = {**SETTINGS, "synchronous_commit": "on"}
    for read in (of_source, of_stream, of_destination, of_state):
        found = {name: value for name, value in read(uri).items() if value not in (None, "None")}
        assert {name: wanted[name] for name in found} == found, read.__name__


@pytest.mark.parametrize("major", [16, 18])
def test_there_is_no_other_setting_that_could_matter(request: pytest.FixtureRequest, major: int) -> None:
    server: Server = request.getfixturevalue(f"server{major}")
    with server.connect() as session:
        rows = session.execute("select name, category from pg_settings where context in ('user', 'superuser')")
        names = {name.lower() for name, category in rows if category.startswith(_CHAPTERS)}
    assert names - HARMLESS - {*_NAMES} == set()


# -- Which of several hosts is meant. ----------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"host": "a,b"}, {"hostaddr": "10.0.0.1,10.0.0.2"}])
def test_of_several_the_primary_is_meant(given: dict[str, str]) -> None:
    assert of_the_primary(given) == {**given, "target_session_attrs": "primary"}


@pytest.mark.parametrize("given", [{"host": "a"}, {}, {"host": "a,b", "target_session_attrs": "any"}])
def test_what_is_said_stays_as_it_is(given: dict[str, str]) -> None:
    assert of_the_primary(given) == given


def test_the_environment_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "a,b")
    assert of_the_primary({}) == {"target_session_attrs": "primary"}
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "any")
    assert of_the_primary({}) == {}


def failure(*answers: str) -> psycopg.OperationalError:
    lines = [f"- host: 'h{n}', port: '5432', hostaddr: '10.0.0.{n}': {words}" for n, words in enumerate(answers)]
    return psycopg.OperationalError("\n".join([answers[-1], "Multiple connection attempts failed.", *lines]))


DOWN = 'connection failed: connection to server at "10.0.0.1", port 5432 failed: Connection refused\n\tIs it running?'
STANDBY = 'connection failed: connection to server at "10.0.0.2", port 5432 failed: server is in hot standby mode'
REFUSES = 'connection failed: connection to server at "10.0.0.2", port 5432 failed: FATAL:  no pg_hba.conf entry'


def test_each_host_is_told_with_its_answer() -> None:
    refused = connection_failure("the source h", failure(DOWN, STANDBY))
    assert refused.kind is ErrorKind.CONNECTION
    assert refused.message == (
        "No connection to the source h: h0:5432: Connection refused; h1:5432: server is in hot standby mode."
    )
    assert "target_session_attrs" in refused.remedy


def test_one_that_refuses_for_good_ends_nothing_while_another_is_only_away() -> None:
    assert connection_failure("x", failure(DOWN, REFUSES)).kind is ErrorKind.CONNECTION
    assert connection_failure("x", failure(REFUSES, REFUSES)).kind is ErrorKind.AUTHENTICATION
