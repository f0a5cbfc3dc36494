"""Databases whose settings were made for other people's sessions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Database
from tests.failures.pipeline import PipelineUnderTest

pytestmark = pytest.mark.servers

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
