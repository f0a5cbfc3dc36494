"""Airflow's connections as options of delta-rs for an object store."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk import Connection

from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.storage_connections import storage_options

SECRET = "a/b+c= d"


def options(conn_type: str, extra: dict[str, Any] | None = None, **parts: Any) -> dict[str, str]:
    return storage_options(Connection(conn_id="lake", conn_type=conn_type, extra=json.dumps(extra or {}), **parts))


def test_keys_of_an_aws_connection_are_its_login_and_password() -> None:
    extra = {"region_name": "eu-central-1", "aws_session_token": "t", "config_kwargs": {"retries": {}}}
    assert options("aws", extra, login="AKIA", password=SECRET) == {
        "AWS_ACCESS_KEY_ID": "AKIA",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": "t",
        "AWS_REGION": "eu-central-1",
    }


def test_keys_of_an_aws_connection_may_be_among_its_extras() -> None:
    found = options("aws", {"aws_access_key_id": "AKIA", "aws_secret_access_key": SECRET})
    assert found == {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": SECRET}


def test_an_endpoint_may_be_for_s3_alone_and_without_tls() -> None:
    everywhere, s3 = "https://minio.example", "http://127.0.0.1:9000"
    assert options("aws", {"endpoint_url": everywhere}) == {"AWS_ENDPOINT_URL": everywhere}
    found = options("aws", {"endpoint_url": everywhere, "service_config": {"s3": {"endpoint_url": s3}}})
    assert found == {"AWS_ENDPOINT_URL": s3, "AWS_ALLOW_HTTP": "true"}


@pytest.mark.parametrize("conn_type", ["aws", "google_cloud_platform"])
def test_without_credentials_the_machine_s_own_role_is_used(conn_type: str) -> None:
    assert options(conn_type) == {}


@pytest.mark.parametrize("key", [{"type": "service_account", "private_key": SECRET}, '{"type": "service_account"}'])
def test_google_s_key_is_an_object_or_its_text(key: Any) -> None:
    text = key if isinstance(key, str) else json.dumps(key)
    for name in ("keyfile_dict", "extra__google_cloud_platform__keyfile_dict"):
        assert options("google_cloud_platform", {name: key, "project": "p"}) == {"GOOGLE_SERVICE_ACCOUNT_KEY": text}


def test_google_s_key_may_be_a_file() -> None:
    assert options("google_cloud_platform", {"key_path": "/key.json"}) == {"GOOGLE_SERVICE_ACCOUNT": "/key.json"}


@pytest.mark.parametrize(
    ("parts", "extra", "expected"),
    [
        ({"login": "shop", "password": SECRET}, {}, {"ACCOUNT_KEY": SECRET}),
        ({"host": "https://shop.blob.core.windows.net/"}, {"account_key": SECRET}, {"ACCOUNT_KEY": SECRET}),
        ({"login": "shop"}, {"shared_access_key": SECRET}, {"ACCOUNT_KEY": SECRET}),
        ({"login": "shop"}, {"sas_token": "sv=1&sig=x"}, {"SAS_TOKEN": "sv=1&sig=x"}),
        (
            {"host": "https://shop.blob.core.windows.net", "login": "app", "password": SECRET},
            {"tenant_id": "t"},
            {"TENANT_ID": "t", "CLIENT_ID": "app", "CLIENT_SECRET": SECRET},
        ),
        ({}, {"connection_string": f"AccountName=shop;AccountKey={SECRET}"}, {"ACCOUNT_KEY": SECRET}),
    ],
)
def test_credentials_for_azure_blob_storage(
    parts: dict[str, str], extra: dict[str, str], expected: dict[str, str]
) -> None:
    wanted = {"ACCOUNT_NAME": "shop", **expected}
    assert options("wasb", extra, **parts) == {f"AZURE_STORAGE_{name}": value for name, value in wanted.items()}


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, {"ACCOUNT_KEY": SECRET}),
        ({"tenant_id": "t"}, {"TENANT_ID": "t", "CLIENT_ID": "app", "CLIENT_SECRET": SECRET}),
    ],
)
def test_credentials_for_azure_data_lake(extra: dict[str, str], expected: dict[str, str]) -> None:
    wanted = {"ACCOUNT_NAME": "shop", **expected}
    found = options("adls", extra, host="shop", login="app", password=SECRET)
    assert found == {f"AZURE_STORAGE_{name}": value for name, value in wanted.items()}


@pytest.mark.parametrize(
    ("conn_type", "extra", "word"),
    [
        ("postgres", {}, "no object store"),
        ("aws", {"role_arn": "arn:aws:iam::1:role/x"}, "role_arn"),
        ("aws", {"profile_name": "x"}, "profile_name"),
        ("google_cloud_platform", {"impersonation_chain": "x"}, "impersonation_chain"),
        ("wasb", {"sas_token": "https://shop.blob.core.windows.net/?sv=1"}, "sas_token"),
        ("wasb", {"connection_string": f"AccountKey={SECRET}"}, "AccountName"),
    ],
)
def test_a_field_that_would_change_the_identity_is_refused(conn_type: str, extra: dict[str, str], word: str) -> None:
    with pytest.raises(PgetlError, match=rf"'lake' .*{word}") as caught:
        options(conn_type, extra, password=SECRET)
    assert caught.value.remedy
    assert SECRET not in str(caught.value)
