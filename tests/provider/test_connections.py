"""From Airflow's connections to libpq's URIs."""

from __future__ import annotations

import asyncio
import json

import psycopg.conninfo
import pytest
from airflow.sdk import Connection

from airflow_provider_pgetl.connections import (
    ConnectionIds,
    aenvironment,
    environment,
    postgres_uri,
    stored_environment,
)
from airflow_provider_pgetl.engine.config.tokens import Address
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.source.connecting import connect
from airflow_provider_pgetl.engine.state.state_database import StateDatabase
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases


def parsed(**parts: object) -> dict[str, object]:
    return dict(psycopg.conninfo.conninfo_to_dict(postgres_uri(Connection(conn_id="x", conn_type="postgres", **parts))))


@pytest.mark.parametrize("password", ["simple", "p@ss:w/rd?#%", "with space", "ä€", "100%25", "'\"\\", "a=b&c"])
def test_odd_passwords_arrive_as_they_are(password: str) -> None:
    found = parsed(host="db", login="us:er@x", password=password, schema="sh/op", port=5433)
    assert found == {"host": "db", "user": "us:er@x", "password": password, "dbname": "sh/op", "port": "5433"}


@pytest.mark.parametrize("host", ["::1", "[::1]", "/var/run/postgresql", "db.example.com"])
def test_hosts_of_every_kind(host: str) -> None:
    assert parsed(host=host, schema="d")["host"] == host.strip("[]")


def test_extras_of_libpq_pass_and_those_of_cursors_and_sqlalchemy_do_not_matter() -> None:
    given = {"sslmode": "verify-full", "sslrootcert": "/a b/ca.pem", "options": "-c work_mem=64MB -c a.b=x"}
    beside = {"cursor": "dictcursor", "sqlalchemy_scheme": "x", "application_name": "mine", "iam": False}
    found = parsed(host="db", schema="d", extra=json.dumps({**given, **beside, "keepalives": True, "sslsni": 0}))
    assert found == {"host": "db", "dbname": "d", **given, "keepalives": "1", "sslsni": "0"}


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (
            {"iam": True, "redshift": True},
            r"'redshift', which pgetl cannot honour\. Tokens are made for RDS and Aurora",
        ),
        (
            {"iam": True, "azure_conn_id": "azure"},
            r"'azure_conn_id', which pgetl cannot honour\. .*Give the role a password",
        ),
        ({"service": "evil"}, r"'service', which pgetl cannot honour\. Take it out\. Known are .*options"),
        ({"host": "evil"}, "'host', which"),
        ({"hostaddr": "10.0.0.1"}, "'hostaddr', which"),
        ({"sslmod": "require"}, "'sslmod', which"),
    ],
)
def test_an_extra_that_cannot_be_honoured_is_refused_by_its_name(extra: dict[str, object], said: str) -> None:
    with pytest.raises(PgetlError, match=f"The connection 'x' has the extra {said}") as caught:
        parsed(host="db", schema="d", extra=json.dumps({**extra}))
    assert "evil" not in str(caught.value)
    assert caught.value.directive.retry == "none"


IAM = {"host": "shop.abc.eu-west-1.rds.amazonaws.com", "login": "pgetl", "password": "unused", "schema": "shop"}
KEYS = {"login": "AKIA", "password": "s/e+c"}


def given_iam(monkeypatch: pytest.MonkeyPatch, extra: dict[str, object], aws: dict[str, object] | None = None) -> None:
    for name, parts in (("A", {"conn_type": "postgres", **IAM, "extra": {"iam": True, **extra}}), ("KEYS", aws)):
        monkeypatch.delenv(f"AIRFLOW_CONN_{name}", raising=False)
        if parts is not None:
            monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(parts))


def settings(ids: ConnectionIds | None = None) -> dict[str, str]:
    """What the URI says of its token; the same by each way of looking connections up."""
    ids = ids or ConnectionIds("a", "a")
    found = environment(ids)
    assert asyncio.run(aenvironment(ids)) == stored_environment(ids) == found
    address = Address.read(found["PGETL_SOURCE_URI"])
    assert "password" not in address.given
    return dict(address.settings)


def test_iam_is_a_token_that_the_aws_connection_signs_for(monkeypatch: pytest.MonkeyPatch) -> None:
    given_iam(monkeypatch, {"aws_conn_id": "keys"}, {"conn_type": "aws", **KEYS, "extra": {"region_name": "eu-west-1"}})
    expected = {"token": "aws-iam", "aws_access_key_id": "AKIA", "aws_secret_access_key": "s/e+c"}
    assert settings() == {**expected, "aws_region": "eu-west-1"}
    given_iam(monkeypatch, {"aws_conn_id": "keys", "region_name": "us-east-2"}, {"conn_type": "aws", **KEYS})
    assert settings() == {**expected, "aws_region": "us-east-2"}


def test_the_keys_of_an_aws_connection_may_be_extras_and_assume_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"aws_access_key_id": "AKIA", "aws_secret_access_key": "s", "aws_session_token": "t"}
    role = {"role_arn": "arn:aws:iam::1:role/r", "assume_role_kwargs": {"ExternalId": "shop"}}
    given_iam(monkeypatch, {"aws_conn_id": "keys"}, {"conn_type": "aws", "extra": {**keys, **role}})
    named = {"aws_role_arn": "arn:aws:iam::1:role/r", "aws_external_id": "shop"}
    assert settings() == {"token": "aws-iam", **keys, **named}


def test_without_an_aws_connection_the_machine_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    for extra in ({"aws_conn_id": None}, {}):
        given_iam(monkeypatch, extra)
        assert settings() == {"token": "aws-iam"}
    given_iam(monkeypatch, {"aws_conn_id": "keys"})
    for look in (environment, stored_environment, lambda ids: asyncio.run(aenvironment(ids))):
        with pytest.raises(PgetlError, match="no Airflow connection 'keys', which signs for the tokens of 'a'"):
            look(ConnectionIds("a", "a"))


@pytest.mark.parametrize(
    ("aws", "said"),
    [
        ({"conn_type": "http"}, "is of type 'http', not aws"),
        ({"extra": {"profile_name": "p"}}, "has 'profile_name'"),
        ({"extra": {"role_arn": "r", "assume_role_method": "assume_role_with_saml"}}, "'assume_role_with_saml'"),
        ({"extra": {"role_arn": "r", "assume_role_kwargs": {"Policy": "p"}}}, "has 'Policy' in 'assume_role_kwargs'"),
    ],
)
def test_who_cannot_sign_outside_airflow_is_refused(
    aws: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_iam(monkeypatch, {"aws_conn_id": "keys"}, {"conn_type": "aws", **KEYS, **aws})
    with pytest.raises(PgetlError, match=f"The connection 'keys' .*{said}.*cannot sign") as caught:
        environment(ConnectionIds("a", "a"))
    assert "s/e+c" not in str(caught.value)


def test_a_token_of_google_is_named_by_its_kind() -> None:
    parts = {"host": "10.0.0.1", "login": "pgetl@project.iam", "schema": "d", "extra": json.dumps({"token": "gcp-iam"})}
    address = Address.read(postgres_uri(Connection(conn_id="x", conn_type="postgres", **parts)))
    assert address.settings == {"token": "gcp-iam"}
    assert address.given["user"] == "pgetl@project.iam"


def test_the_options_of_a_connection_reach_every_session(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    options = "options=-c%20work_mem%3D7MB%20-c%20statement_timeout%3D61s"
    monkeypatch.setenv(
        "AIRFLOW_CONN_A", f"{databases.source.uri}{'&' if '?' in databases.source.uri else '?'}{options}"
    )
    uri = environment(ConnectionIds("a", "a"))["PGETL_SOURCE_URI"]
    for open_session in (lambda: connect(uri, "a session"), lambda: StateDatabase.parse(uri).connect("a session")):
        with open_session() as session:
            assert session.execute("show work_mem").fetchone() == ("7MB",)
            assert session.execute("show statement_timeout").fetchone() == ("0",), "what pgetl needs goes before"


def test_a_connection_of_another_type_is_refused() -> None:
    with pytest.raises(PgetlError, match="'x' is of type 'mysql', not postgres"):
        postgres_uri(Connection(conn_id="x", conn_type="mysql", host="h"))


def test_each_reference_gets_the_value_of_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_A", "postgresql://u:p@a/one")
    monkeypatch.setenv("AIRFLOW_CONN_B", "postgresql://u:q%40@b/two")
    assert environment(ConnectionIds("a", "a", "b")) == {
        "PGETL_SOURCE_URI": "postgresql://u:p@a/one",
        "PGETL_STATE_URI": "postgresql://u:p@a/one",
        "PGETL_DESTINATION_URI": "postgresql://u:q%40@b/two",
    }


def test_a_store_s_connection_is_its_options_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_A", "postgresql://u:p@a/one")
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", "login": "AKIA", "password": "s'e"}))
    given = environment(ConnectionIds("a", "a", storage="lake"))
    assert json.loads(given["PGETL_STORAGE"]) == {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "s'e"}
    assert "PGETL_DESTINATION_URI" not in given


def test_the_key_of_transformers_is_the_password_of_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_A", "postgresql://u:p@a/one")
    monkeypatch.setenv("AIRFLOW_CONN_KEY", json.dumps({"conn_type": "generic", "password": "a/long@key, indeed"}))
    ids = ConnectionIds("a", "a", transform_key="key")
    for look in (environment, stored_environment, lambda ids: asyncio.run(aenvironment(ids))):
        assert look(ids)["PGETL_TRANSFORM_KEY"] == "a/long@key, indeed"
    monkeypatch.setenv("AIRFLOW_CONN_KEY", json.dumps({"conn_type": "generic"}))
    with pytest.raises(PgetlError, match="'key' has no password, which is to be the key of transformers"):
        environment(ids)


def test_ids_survive_as_json_also_those_of_before_there_were_stores() -> None:
    ids = ConnectionIds("a", "b", storage="lake")
    assert ConnectionIds(**ids.as_json()) == ids
    assert ConnectionIds(source="a", state="b", destination=None) == ConnectionIds("a", "b")


@pytest.mark.parametrize(
    ("lacking", "said"),
    [
        (ConnectionIds("no", "a", "a"), "'no', which leads to the source. .*`source_conn_id`"),
        (ConnectionIds("a", "no", "a"), "'no', which leads to the pipeline's state. .*`state_conn_id`"),
        (ConnectionIds("a", "a", "no"), "'no', which leads to the destination. Add one of type postgres"),
        (ConnectionIds("a", "a", storage="no"), "'no', which leads to the destination's object store. .*aws"),
        (ConnectionIds("a", "a", transform_key="no"), "'no', which leads to the key of transformers. .*`key_conn_id`"),
    ],
)
def test_a_missing_connection_is_told_with_what_it_is_for(
    lacking: ConnectionIds, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_A", "postgresql://u:p@a/one")
    for look in (environment, lambda ids: asyncio.run(aenvironment(ids))):
        with pytest.raises(PgetlError, match=f"no Airflow connection {said}") as caught:
            look(lacking)
        assert caught.value.directive.retry == "none"
