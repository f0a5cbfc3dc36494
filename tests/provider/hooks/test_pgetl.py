"""The hook: a source as *Test connection* sees it, and a pipeline as a task of one's own does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from airflow.models.connection import Connection
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG, task
from psycopg.conninfo import conninfo_to_dict

from airflow_provider_pgetl import PgetlHook, Postgres, ReplicationDag
from airflow_provider_pgetl.connections import postgres_uri
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases, Server
from tests.provider.running import MiniAirflow

on_16 = pytest.mark.parametrize("source_server", [16], indirect=True)


def shop() -> ReplicationDag:
    return ReplicationDag(
        "shop", source_conn_id="shop_db", tables=["public.customers", "public.orders"],
        destination=Postgres("replica_db"),
    )  # fmt: skip


# -- the source -------------------------------------------------------------------------------------------------------


@on_16
def test_a_source_that_is_fit_says_so(airflow_connections: Databases) -> None:
    fit, said = PgetlHook("shop_db").test_connection()
    assert fit, said
    assert said.startswith("Fit as a source: PostgreSQL 16.")
    assert " replication slots and " in said


@on_16
def test_what_is_only_a_risk_is_told_as_well(airflow_connections: Databases) -> None:
    source = airflow_connections.source
    free = "select current_setting('max_replication_slots')::int - (select count(*)::int from pg_replication_slots)"
    others = [f"other_{number}" for number in range(source.execute(free)[0][0] - 2)]
    for name in others:
        source.execute("select pg_create_physical_replication_slot(%s)", [name])
    try:
        fit, said = PgetlHook("shop_db").test_connection()
    finally:
        for name in others:
            source.execute("select pg_drop_replication_slot(%s)", [name])
    assert fit, said
    assert "; 2 replication slots and" in said
    assert "Raise max_replication_slots" in said


@on_16
def test_a_role_that_may_not_replicate_is_told_the_remedy(
    airflow_connections: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = airflow_connections.source
    name = f"reader_of_{source.name}"
    source.execute(f"create role {name} login password 'hunter2'")
    try:
        parts = conninfo_to_dict(source.uri)
        place = {"host": parts["host"], "port": int(str(parts["port"])), "schema": source.name}
        fields = {"conn_type": "pgetl", "login": name, "password": "hunter2", **place}
        monkeypatch.setenv("AIRFLOW_CONN_READER", json.dumps(fields))
        fit, said = PgetlHook("reader").test_connection()
    finally:
        source.execute(f"drop role {name}")
    assert not fit
    assert said == f'The role {name} may not replicate. ALTER ROLE "{name}" REPLICATION.'


@pytest.fixture(scope="module")
def undecoded() -> Iterator[Server]:
    """As PostgreSQL comes."""
    with Server.start(16, {"wal_level": "replica"}) as server:
        yield server


def test_one_line_says_what_is_wrong_and_the_remedy(undecoded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_PLAIN", undecoded.uri())
    remedy = "ALTER SYSTEM SET wal_level = 'logical', then restart it."
    problem = "The source has wal_level = replica, which cannot be decoded."
    assert PgetlHook("plain").test_connection() == (False, f"{problem} {remedy}")
    found = {"severity": "error", "problem": problem, "remedy": remedy, "table": None}
    assert found in PgetlHook("plain").preflight()


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/nothing", "127.0.0.1"),
        ("mysql://me:hunter2@127.0.0.1:1/nothing", "is of type 'mysql'"),
        ("", "There is no Airflow connection 'odd'"),
    ],
)
def test_what_cannot_be_asked_is_no_exception(uri: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if uri:
        monkeypatch.setenv("AIRFLOW_CONN_ODD", uri)
    fit, why = PgetlHook("odd").test_connection()
    assert not fit
    assert said in why
    assert "hunter2" not in why


def test_airflow_tests_connections_of_this_type_by_it(undecoded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the api-server does: the connection is in the environment, under an id of that moment."""
    parts = conninfo_to_dict(undecoded.uri())
    tested = Connection(
        conn_id="tmp_1", conn_type="pgetl", host=str(parts["host"]), port=int(str(parts["port"])),
        login=str(parts["user"]), password=str(parts.get("password", "")), schema=str(parts["dbname"]),
        extra=json.dumps({"sslmode": "prefer", "sslrootcert": None}),
    )  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_TMP_1", tested.get_uri())
    fit, said = tested.test_connection()
    assert not fit
    assert "wal_level = replica" in said


def test_a_field_of_the_form_that_is_left_empty_is_no_setting() -> None:
    extra = json.dumps({"sslmode": "", "sslrootcert": None, "connect_timeout": 3})
    connection = Connection(conn_id="c", conn_type="pgetl", host="h", login="u", schema="d", extra=extra)
    assert postgres_uri(connection) == "postgresql://u@h/d?connect_timeout=3"


@on_16
def test_a_session_is_pgetls_own(airflow_connections: Databases) -> None:
    with PgetlHook(replication=shop().replication).get_conn() as connection:
        assert connection.info.parameter_status("application_name") == "pgetl shop hook"


# -- a pipeline -------------------------------------------------------------------------------------------------------


@on_16
def test_a_task_of_ones_own_asks_for_the_phases(small_shop: Databases) -> None:
    replicated = shop()
    with DAG("report", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:

        @task
        def before() -> dict[str, str]:
            return PgetlHook("shop_db").phases("shop")

        @task
        def after() -> dict[str, str]:
            return PgetlHook(replication=replicated.replication).phases()

        before()
        after()
    with MiniAirflow(dag) as airflow:
        assert airflow.run("before").must_succeed().value == {}
        with MiniAirflow(replicated) as other:
            other.run("prepare").must_succeed()
        expected = {"public.customers": "Init", "public.orders": "Init"}
        assert airflow.run("after").must_succeed().value == expected
        assert airflow.run("before").must_succeed().value == expected


@on_16
def test_status_and_findings_are_plain_data(small_shop: Databases) -> None:
    hook = PgetlHook(replication=shop().replication)
    with MiniAirflow(shop()) as airflow:
        airflow.run("prepare").must_succeed()
    status = hook.status()
    assert [table["phase"] for table in status["tables"]] == ["Init", "Init"]
    assert [slot["stream"] for slot in status["slots"]] == ["apply"]
    small_shop.source.execute("drop table orders")
    errors = [finding for finding in hook.check() if finding["severity"] == "error"]
    assert ["public.orders" in str(finding["problem"]) for finding in errors] == [True]
    assert json.dumps([status, errors])


def test_without_a_declaration_it_says_what_it_lacks() -> None:
    with pytest.raises(AirflowFailException, match=r"PgetlHook\(replication=…\)"):
        PgetlHook("shop_db").status()
