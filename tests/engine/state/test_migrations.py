"""Migrations: from nothing, by anybody, at once, and never backwards."""

import multiprocessing
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from airflow_provider_pgetl.engine.model.errors import ErrorKind, Fenced, PgetlError
from airflow_provider_pgetl.engine.state.schema import HEAD, SCHEMA, VERSION_TABLE, metadata
from airflow_provider_pgetl.engine.state.state_database import SCRIPTS, StateDatabase, migrate, withdraw
from airflow_provider_pgetl.engine.state.store import is_stored, open_store
from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.conftest import PostgresServers
from tests.engine.state.samples import ORDERS
from tests.raising import raises

pytestmark = pytest.mark.servers


@pytest.mark.filterwarnings("ignore:Did not recognize type 'pg_lsn'")
def test_the_tables_are_as_defined(state_database: Database) -> None:
    migrate(state_database.uri)
    engine = StateDatabase.parse(state_database.uri).pool("test")
    options = {
        "include_schemas": True,
        "version_table": VERSION_TABLE,
        "version_table_schema": SCHEMA,
        "compare_server_default": True,
    }
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_every_table_has_a_primary_key_and_lies_in_our_schema(state_database: Database) -> None:
    """Without a key, a publication FOR ALL TABLES would make their updates fail."""
    migrate(state_database.uri)
    query = (
        "select relnamespace::regnamespace::text, relname, exists(select from pg_index where indrelid = c.oid "
        "and indisprimary) from pg_class c where relkind = 'r' and relnamespace::regnamespace::text "
        "not in ('pg_catalog', 'information_schema')"
    )
    found = state_database.execute(query)
    assert {schema for schema, _, _ in found} == {SCHEMA}
    assert {name for _, name, _ in found} == {table.name for table in metadata.sorted_tables} | {VERSION_TABLE}
    assert all(keyed for _, _, keyed in found)


def test_the_known_head_is_the_last_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


def _migrate_together(start: threading.Barrier, uri: str) -> None:
    start.wait()
    migrate(uri)


@pytest.fixture
def five_databases(postgres_servers: PostgresServers) -> Iterator[list[Database]]:
    server = postgres_servers[16]
    databases = [server.create_database(f"to_migrate_{number}") for number in range(5)]
    yield databases
    for database in databases:
        server.drop_database(database.name)


def test_four_processes_at_once(five_databases: list[Database]) -> None:
    """Five times over, because they must really meet."""
    with (
        multiprocessing.Manager() as manager,
        ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as processes,
    ):
        start = manager.Barrier(4)
        for database in five_databases:
            list(processes.map(_migrate_together, [start] * 4, [database.uri] * 4))
    for database in five_databases:
        assert database.execute("select version_num from pgetl.schema_version") == [(HEAD,)]


def test_threads_of_one_process_migrate_different_databases(five_databases: list[Database]) -> None:
    """Alembic itself cannot: it keeps the migration under way in globals."""
    start = threading.Barrier(5)
    with ThreadPoolExecutor(5) as threads:
        list(threads.map(_migrate_together, [start] * 5, [database.uri for database in five_databases]))
    for database in five_databases:
        assert database.execute("select version_num from pgetl.schema_version") == [(HEAD,)]


def test_a_database_that_is_up_to_date_is_left_alone(state_database: Database) -> None:
    open_store(state_database.uri, "shop").close()
    state_database.execute("vacuum")  # else whoever reads the catalog next tidies what the migrations have left in it
    before = state_database.execute("select pg_current_wal_insert_lsn()")
    open_store(state_database.uri, "shop").close()
    assert state_database.execute("select pg_current_wal_insert_lsn()") == before


def test_a_newer_database_is_refused(state_database: Database) -> None:
    migrate(state_database.uri)
    state_database.execute("update pgetl.schema_version set version_num = '9999'")
    with raises(ErrorKind.CONFIG, match="version 9999, newer than this release") as caught:
        open_store(state_database.uri, "shop")
    assert "newer release" in caught.value.remedy
    assert state_database.name in caught.value.message


def test_a_migration_that_fails_leaves_nothing(state_database: Database) -> None:
    state_database.execute("create schema pgetl")
    state_database.execute("create table pgetl.destination_tables (id int)")
    with pytest.raises(PgetlError, match="already exists"):
        migrate(state_database.uri)
    assert state_database.execute("select relname from pg_class where relnamespace = 'pgetl'::regnamespace") == [
        ("destination_tables",)
    ]


@pytest.fixture
def clerk(state_database: Database) -> Iterator[str]:
    """The URI of a role that has no right of its own."""
    state_database.execute("create role clerk login password 'c'")
    state_database.execute(f"revoke all on database {state_database.name} from public")
    state_database.execute("revoke all on schema public from public")
    state_database.execute(f"grant connect on database {state_database.name} to clerk")
    yield state_database.server.uri(state_database.name, "clerk", "c")
    state_database.execute(f"alter database {state_database.name} owner to postgres")
    state_database.execute("drop owned by clerk cascade")
    state_database.execute("drop role clerk")


def test_a_role_that_may_only_create_in_the_database(state_database: Database, clerk: str) -> None:
    state_database.execute(f"grant create on database {state_database.name} to clerk")
    store = open_store(clerk, "shop")
    store.register(ORDERS, 1, 2)
    assert store.acquire_lease("a", 60) is not None
    store.close()


def test_a_role_that_may_only_use_what_another_made(state_database: Database, clerk: str) -> None:
    migrate(state_database.uri)
    state_database.execute("grant usage on schema pgetl to clerk")
    state_database.execute("grant select, insert, update, delete on all tables in schema pgetl to clerk")
    store = open_store(clerk, "shop")
    store.register(ORDERS, 1, 2)
    store.start_attempt(60)
    store.destroy()
    store.close()


def test_taken_away_with_the_last_pipeline(state_database: Database) -> None:
    """And whoever still works for one of before is told so, also when there are new tables by then."""
    first, second = open_store(state_database.uri, "shop"), open_store(state_database.uri, "other")
    first.destroy()
    assert not withdraw(state_database.uri)
    second.destroy()
    assert withdraw(state_database.uri)
    assert state_database.execute("select 1 from pg_namespace where nspname = 'pgetl'") == []
    assert not withdraw(state_database.uri)
    assert not is_stored(state_database.uri, "shop")
    with pytest.raises(Fenced, match="destroyed"):
        first.load()
    anew = open_store(state_database.uri, "shop")
    assert is_stored(state_database.uri, "shop")
    assert not is_stored(state_database.uri, "other")
    for former in (first, second):
        with pytest.raises(Fenced, match="destroyed"):
            former.load()
        with pytest.raises(Fenced, match="destroyed"):
            former.acquire_lease("a", 60)
    for store in (first, second, anew):
        store.close()


def test_what_is_not_ours_stays(state_database: Database, clerk: str) -> None:
    """Other tables in the schema; and a schema that a role could not make anew."""
    open_store(state_database.uri, "shop").destroy()
    state_database.execute("create table pgetl.of_somebody (id int)")
    assert withdraw(state_database.uri)
    assert state_database.execute("select tablename from pg_tables where schemaname = 'pgetl'") == [("of_somebody",)]
    state_database.execute("drop schema pgetl cascade; create schema pgetl authorization clerk")
    open_store(clerk, "shop").destroy()
    assert not withdraw(clerk)


@pytest.mark.parametrize("made", [False, True], ids=["no schema yet", "schema of another"])
def test_a_role_without_rights_is_told_which_are_missing(state_database: Database, clerk: str, made: bool) -> None:
    if made:
        migrate(state_database.uri)
    with raises(ErrorKind.PRIVILEGE, match="permission denied") as caught:
        open_store(clerk, "shop")
    assert "create on the database" in caught.value.remedy


def test_the_old_connections_are_gone(state_database: Database) -> None:
    open_store(state_database.uri, "shop").close()
    query = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    with psycopg.connect(state_database.uri) as connection:
        row = connection.execute(query).fetchone()
    assert row == (0,)
