"""A server turns the pipeline away: it is said which one and why, nothing is begun, and with the remedy it runs."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import replace

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Databases, Server
from tests.failures.pipeline import ITEMS, ORDERS, PipelineUnderTest, with_password
from tests.pooler import Pooler

pytestmark = pytest.mark.servers

NOWHERE = "postgresql://me:hunter2@127.0.0.1:1/x"


@pytest.fixture
def role(shop: PipelineUnderTest) -> Iterator[str]:
    """A role on the source that may replicate and read, and nothing else."""
    name = f"reader_{secrets.token_hex(4)}"
    with shop.source.connect() as session:
        session.execute(f"create role {name} login replication password 'hunter2'".encode())
        session.execute(f"grant select on all tables in schema public to {name}".encode())
    shop.environment["PGETL_SOURCE_URI"] = shop.source.server.uri(shop.source.name, name, "hunter2")
    yield name
    shop.environment.clear()
    with shop.source.connect() as session:
        session.execute(f"reassign owned by {name} to postgres; drop owned by {name}; drop role {name}".encode())


# -- passwords --------------------------------------------------------------------------------------------------------


SERVERS = {"SOURCE": "the source", "STATE": "the state database", "DESTINATION": "the destination"}


@pytest.mark.parametrize("variable", SERVERS)
@pytest.mark.parametrize("trouble", ["a wrong password", "no server"])
def test_a_server_that_cannot_be_entered_is_named_at_once(shop: PipelineUnderTest, variable: str, trouble: str) -> None:
    uri = {"SOURCE": shop.source, "STATE": shop.state, "DESTINATION": shop.destination}[variable].uri
    away = trouble == "no server"
    shop.environment[f"PGETL_{variable}_URI"] = NOWHERE if away else with_password(uri, "hunter2")
    said = shop.catch_up()
    assert said.code == 1
    assert re.fullmatch(
        f"No connection to {SERVERS[variable]} "
        + (
            "me@127.0.0.1:1/x: Connection refused. Check that the server is up and reachable from here."
            if away
            else "postgres@127.0.0.1:\\d+/\\w+: password authentication failed for user "
            '"postgres". Check user, password and pg_hba.conf of that server.'
        ),
        said.complaint,
    )
    assert (shop.slots(), shop.publications()) == ([], [])
    shop.environment.clear()
    shop.assert_nothing_lost()


def test_a_password_that_was_rotated_while_it_ran_is_noticed_with_the_next_connection(
    shop: PipelineUnderTest, role: str
) -> None:
    """What is connected stays so. The next connection fails, which ends the run; with the new password it goes on."""
    shop.source.execute(f"alter table orders owner to {role}; alter table items owner to {role}")
    shop.source.execute(f"grant create on database {shop.source.name} to {role}")
    with shop.follow() as run:
        shop.source.execute(f"alter role {role} password 'changed'")
        shop.source.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where usename = '{role}'")
        said = run.wait(120)
    assert said.code == 1
    assert f"the source {role}@" in said.complaint
    assert f'password authentication failed for user "{role}"' in said.complaint
    shop.environment["PGETL_SOURCE_URI"] = shop.source.server.uri(shop.source.name, role, "changed")
    shop.assert_nothing_lost()


# -- settings and privileges ------------------------------------------------------------------------------------------


def test_wal_level_replica(shop: PipelineUnderTest, own_server: Server) -> None:
    source = own_server.create_database("source")
    shop.databases = Databases(source, shop.destination)
    shop.fill()
    own_server.configure({"wal_level": "replica"}, restart=True)
    said = shop.catch_up()
    assert said.code == 3
    assert said.complaint == (
        "The source has wal_level = replica, which cannot be decoded. "
        "ALTER SYSTEM SET wal_level = 'logical', then restart it."
    )
    own_server.configure({"wal_level": "logical"}, restart=True)
    shop.assert_nothing_lost()


def test_a_role_that_may_not_publish_is_told_what_to_grant(shop: PipelineUnderTest, role: str) -> None:
    said = shop.catch_up()
    assert said.code == 3
    database, *tables = said.error_messages
    assert database == (
        f"The role {role} may not create a publication in the database {shop.source.name}. GRANT CREATE ON DATABASE "
        f'"{shop.source.name}" TO "{role}", or create it yourself and set `manage_publication = false`.'
    )
    assert tables == [
        f"{shop.file}:2: Only the owner of public.{name} may add it to a publication. Make {role} a member of its "
        "owner postgres, or publish it yourself and set `manage_publication = false`."
        for name in ("items", "orders")
    ]
    assert shop.slots() == []
    shop.source.execute("create publication pgetl_shop for table orders, items")
    shop.source_options = "manage_publication = false"
    shop.assert_nothing_lost()


def test_a_publication_of_ones_own_that_lacks_a_table(shop: PipelineUnderTest, role: str) -> None:
    shop.source.execute("create publication pgetl_shop for table orders")
    shop.source_options = "manage_publication = false"
    said = shop.catch_up()
    assert said.code == 3
    assert said.complaint == (
        f"{shop.file}:2: The publication pgetl_shop does not contain public.items. "
        'ALTER PUBLICATION pgetl_shop ADD TABLE "public"."items".'
    )
    shop.source.execute('ALTER PUBLICATION pgetl_shop ADD TABLE "public"."items"')
    shop.assert_nothing_lost()


def test_a_role_that_may_not_read_a_table(shop: PipelineUnderTest, role: str) -> None:
    shop.source.execute(f"revoke select on items from {role}; create publication pgetl_shop for table orders, items")
    shop.source_options = "manage_publication = false"
    said = shop.catch_up()
    assert said.code == 3
    grant = f'GRANT SELECT ON "public"."items" TO "{role}".'
    assert said.complaint == f"{shop.file}:2: The role {role} may not read public.items. {grant}"
    shop.source.execute(grant.rstrip("."))
    shop.assert_nothing_lost()


# -- what the destination lets us do ----------------------------------------------------------------------------------


@pytest.fixture
def writer(shop: PipelineUnderTest) -> Iterator[str]:
    """A role that owns nothing in the destination."""
    name = f"writer_{secrets.token_hex(4)}"
    shop.destination.execute(f"create role {name} login password 'hunter2'")
    shop.environment["PGETL_DESTINATION_URI"] = shop.destination.server.uri(shop.destination.name, name, "hunter2")
    yield name
    shop.destination.execute(f"drop owned by {name}; drop role {name}")


def test_a_destination_where_nothing_may_be_made_is_refused_before_anything_is_done(
    shop: PipelineUnderTest, writer: str
) -> None:
    said = shop.catch_up()
    assert said.code == 3
    grant = f'GRANT CREATE ON DATABASE "{shop.destination.name}" TO "{writer}".'
    problem = f"may not create schemas in the destination's database {shop.destination.name}, where pgetl keeps its"
    assert said.complaint == f"{writer} {problem} positions. {grant}"
    assert shop.publications() == []
    assert grant in shop.pgetl("check").out
    shop.destination.execute(grant.rstrip("."))
    shop.destination.execute(f"grant create, usage on schema public to {writer}")
    shop.assert_nothing_lost()


def test_a_schema_that_may_not_be_used_any_more_sets_its_tables_aside(shop: PipelineUnderTest, writer: str) -> None:
    """And no others, while a run follows and when another begins."""
    shop.destination.execute(f"grant create on database {shop.destination.name} to {writer}; create schema sales")
    shop.destination.execute(f"grant create, usage on schema public, sales to {writer}")
    shop.declared, shop.tables = ("public.orders",), (replace(ITEMS, destination="sales.items"), ORDERS)
    shop.more = '[[table]]\nname = "public.items"\ndestination = "sales.items"'
    shop.environment["TEST_WATCH_SECONDS"] = "1"
    with shop.follow() as run:
        shop.destination.execute(f"revoke usage on schema sales from {writer}")
        shop.change_something()
        run.until(lambda: shop.phases()["public.items"] == "Errored", "the table was Errored")
        run.until(shop.arrives("select 1 from orders where note = 'later'"), "the others go on")
        run.stop()
    said = shop.catch_up()
    assert (said.code, "permission denied for schema sales" in said.complaint) == (4, True), said
    shop.destination.execute(f"grant usage on schema sales to {writer}")
    shop.pgetl("rollback", "public.items").assert_well()
    said = shop.catch_up()
    assert said.code == 0, said
    shop.assert_equal()


def test_a_destination_whose_triggers_fire_is_only_warned_of(shop: PipelineUnderTest, writer: str) -> None:
    """A note of the run and of check, which forbids neither."""
    shop.destination.execute(f"grant create on database {shop.destination.name} to {writer}")
    shop.destination.execute(f"grant create, usage on schema public to {writer}")
    grant = f'GRANT SET ON PARAMETER session_replication_role TO "{writer}".'
    said = shop.pgetl("check")
    assert said.code == 0
    assert f"warning: {writer} may not set session_replication_role" in said.out
    assert grant in said.out
    said = shop.catch_up()
    assert said.code == 0
    assert said.out.count(grant) == 1
    shop.destination.execute(grant.rstrip("."))
    assert grant not in shop.catch_up().out
    shop.assert_nothing_lost()
    shop.destination.execute(f"revoke set on parameter session_replication_role from {writer}")


# -- a connection pooler between the pipeline and one of its servers ---------------------------------------------------


_LOST = "is a connection pooler that gives every transaction another session"


@pytest.fixture
def pooler(server16: Server) -> Iterator[Pooler]:
    with Pooler(server16) as pooler:
        yield pooler


@pytest.mark.parametrize("variable", ["SOURCE", "DESTINATION", "STATE"])
def test_a_server_behind_transaction_pooling_is_refused_before_anything_is_done(
    shop: PipelineUnderTest, pooler: Pooler, variable: str
) -> None:
    """What sessions hold would be lost between transactions, or be met by others: so none of ours is pinned."""
    place = {"SOURCE": shop.source, "DESTINATION": shop.destination, "STATE": shop.state}[variable]
    shop.environment[f"PGETL_{variable}_URI"] = pooler.uri(place.name)
    said = shop.catch_up()
    assert said.code == 3, said
    assert f"postgres@127.0.0.1:{pooler.port}/{place.name} {_LOST}" in said.complaint
    said = shop.pgetl("check")
    assert said.code == 3
    assert _LOST in said.out + said.err
    assert (shop.slots(), shop.publications()) == ([], [])
    with Server.connect(shop.source.server, place.name) as session:
        assert session.execute("select 1 from pg_namespace where nspname = 'pgetl'").fetchall() == []


@pytest.mark.slow
def test_a_pooler_that_keeps_sessions_serves_destination_and_state_but_not_the_source(
    shop: PipelineUnderTest, server16: Server
) -> None:
    with Pooler(server16, keeps_sessions=True) as pooler:
        shop.environment["PGETL_DESTINATION_URI"] = pooler.uri(shop.destination.name)
        shop.environment["PGETL_STATE_URI"] = pooler.uri(shop.state.name)
        shop.assert_nothing_lost()
        shop.environment["PGETL_SOURCE_URI"] = pooler.uri(shop.source.name)
        for said in (shop.catch_up(), shop.pgetl("check")):
            assert said.code == 3, said
            assert "unsupported startup parameter: replication" in said.out + said.err
            assert "Name the server's own address in the source's URI" in said.out + said.err
    shop.environment.clear()
    shop.assert_nothing_lost()


# -- servers whose commits wait for a synchronous standby that is not there --------------------------------------------


_AWAY = (
    "wait for a synchronous standby: synchronous_standby_names asks for 2 more than are connected. Bring the standby"
)


def source(shop: PipelineUnderTest, server: Server) -> None:
    shop.databases = Databases(server.create_database("source"), shop.destination)
    shop.fill()


def destination(shop: PipelineUnderTest, server: Server) -> None:
    shop.databases = Databases(shop.source, server.create_database("destination"))


def state(shop: PipelineUnderTest, server: Server) -> None:
    shop.state = server.create_database("state")


def test_a_commit_that_would_hang_is_told_of_each_server(shop: PipelineUnderTest, own_server: Server) -> None:
    databases, kept = shop.databases, shop.state
    for place, name in ((state, "the state database"), (destination, "the destination"), (source, "the source")):
        shop.databases, shop.state = databases, kept
        place(shop, own_server)
        own_server.configure({"synchronous_standby_names": "FIRST 2 (away, further)"})
        said = shop.catch_up()
        assert (said.code, f"Commits in {name}" in said.complaint, _AWAY in said.complaint) == (
            1 if place is state else 3,
            True,
            True,
        ), said
        own_server.configure({"synchronous_standby_names": ""})
    assert shop.slots() == []
    shop.assert_nothing_lost()
    own_server.configure({"synchronous_standby_names": "*"})
    said = shop.pgetl("check")
    own_server.configure({"synchronous_standby_names": ""})
    assert "synchronous_standby_names = '*' means this pipeline's stream, too" in said.out + said.err


# -- databases whose settings were made for other people's sessions ----------------------------------------------------


SETTINGS = (
    "array_nulls = off",
    "bytea_output = 'escape'",
    "client_encoding = 'LATIN1'",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_read_only = on",
    "exit_on_error = on",
    "extra_float_digits = -15",
    "gin_fuzzy_search_limit = 1",
    "idle_in_transaction_session_timeout = '50ms'",
    "intervalstyle = 'iso_8601'",
    "lock_timeout = '50ms'",
    "quote_all_identifiers = on",
    "search_path = 'nowhere'",
    "standard_conforming_strings = off",
    "statement_timeout = '50ms'",
    "synchronous_commit = off",
    "timezone = 'Asia/Tokyo'",
    "transform_null_equals = on",
    "xmlbinary = hex",
    "xmloption = document",
)

_PATIENT = "-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0"
"""For the test's own sessions."""


@pytest.fixture(params=["German", "SQL, DMY", "Postgres, MDY"])
def hostile(request: pytest.FixtureRequest, shop: PipelineUnderTest) -> Iterator[PipelineUnderTest]:
    """The source holds the state, as a newcomer's file has it. The settings go with the databases."""
    shop.state = shop.source
    shop.source.execute("alter table items add at timestamptz default now(), add took interval default '1 day 2 hours'")
    shop.source.execute("alter table items add share float8 default 1.0 / 3")
    shop.source.execute("alter table items add words text[] default '{NULL, \"NULL\", null}'")
    shop.source.execute("alter table items add price money default 1.5, add raw bytea default '\\x00ff'")
    # A composite type has values travel as text, which settings of the reader apply to.
    shop.source.execute("create type mood as enum ('happy'); create type pair as (a int, b mood)")
    shop.source.execute("alter table items add pair pair default '(1,happy)'")
    for database in (shop.source, shop.destination):
        set_all(database, (*SETTINGS, f"datestyle = '{request.param}'"))
    yield shop
    for database in (shop.source, shop.destination):
        with database.server.connect("postgres") as elsewhere:
            elsewhere.execute(f"alter database {database.name} reset all".encode())


def set_all(database: Database, settings: tuple[str, ...]) -> None:
    with database.server.connect("postgres") as elsewhere:
        for setting in settings:
            elsewhere.execute(f"alter database {database.name} set {setting}".encode())


def test_whatever_the_databases_have_set_for_others(hostile: PipelineUnderTest) -> None:
    for verb in (["check"], ["run", "--until", "caught-up"], ["status"], ["reset", "public.items"]):
        hostile.pgetl(*verb).assert_well()
    with hostile.source.connect(options=_PATIENT) as session:
        session.execute("set client_encoding = UTF8; set default_transaction_read_only = off")
        session.execute("insert into public.items (id, what) values (5000, 'Größe')")
        session.execute("insert into public.items (id, what) select n, 'bulk' from generate_series(5001, 5100) n")
    hostile.catch_up().assert_well()
    there, here = (items(database) for database in (hostile.source, hostile.destination))
    assert there == here
    assert len(there) == 151
    hostile.pgetl("destroy", "--yes").assert_well()


def items(database: Database) -> list[object]:
    with database.connect(options=_PATIENT) as connection:
        connection.execute("set extra_float_digits = 3; set client_encoding = UTF8")
        return connection.execute("select i::text from public.items i order by id").fetchall()
