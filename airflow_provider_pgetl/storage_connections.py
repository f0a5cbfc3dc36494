"""Converts Airflow's connections to the storage options of a lake, by which delta-rs reaches an object store.

Only the fields that are listed here are used, and they are read as the hooks of Airflow's own providers read them. A
field that would change the identity at the store, and cannot be carried over, is refused: another identity must not be
used silently. A connection without credentials leaves them to the machine, which may have a role of its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError

if TYPE_CHECKING:
    from airflow.sdk import Connection

Options = dict[str, str]


def storage_options(connection: Connection) -> Options:
    """Returns the options of delta-rs, by the names in its documentation. The result contains secrets."""
    reader = _READERS.get(connection.conn_type or "")
    if reader is None:
        known = ", ".join(_READERS)
        _refuse(connection, f"is of type {connection.conn_type!r}, which is no object store", f"Name one of {known}.")
    return {name: str(value) for name, value in reader(connection).items() if value}


def _aws(connection: Connection) -> Mapping[str, Any]:
    extra = connection.extra_dejson
    for name in ("role_arn", "profile_name"):
        if extra.get(name):
            _refuse(connection, f"has {name!r}", "Give the role to the machines, or the keys to the connection.")
    key, secret = connection.login, connection.password
    if not (key and secret):
        key, secret = extra.get("aws_access_key_id"), extra.get("aws_secret_access_key")
    endpoint = extra.get("service_config", {}).get("s3", {}).get("endpoint_url") or extra.get("endpoint_url")
    return {
        "AWS_ACCESS_KEY_ID": key,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_SESSION_TOKEN": extra.get("aws_session_token"),
        "AWS_REGION": extra.get("region_name"),
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true" if str(endpoint).startswith("http://") else None,
    }


def _google(connection: Connection) -> Mapping[str, Any]:
    for name in ("key_secret_name", "credential_config_file", "impersonation_chain"):
        if _extra(connection, name):
            _refuse(connection, f"has {name!r}", "Give the role to the machines, or the key to the connection.")
    key = _extra(connection, "keyfile_dict")
    return {
        "GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key) if isinstance(key, Mapping) else key,
        "GOOGLE_SERVICE_ACCOUNT": _extra(connection, "key_path"),
    }


def _wasb(connection: Connection) -> Mapping[str, Any]:
    """The connection's host is the account's address; without one, its login is the account's name."""
    sas = _extra(connection, "sas_token")
    if sas and sas.startswith("https"):
        _refuse(connection, "has a whole address as 'sas_token'", "Write the account's address into the host.")
    key = _extra(connection, "shared_access_key")
    if not key and not sas:
        key = connection.password or _extra(connection, "account_key")
    credentials = {"AZURE_STORAGE_ACCOUNT_KEY": key, "AZURE_STORAGE_SAS_TOKEN": sas}
    return _azure(connection, connection.host or connection.login, credentials)


def _adls(connection: Connection) -> Mapping[str, Any]:
    """The connection's host is the account's name."""
    address = _extra(connection, "account_url") or connection.host
    return _azure(connection, address, {"AZURE_STORAGE_ACCOUNT_KEY": connection.password})


def _azure(connection: Connection, account: str | None, credentials: Mapping[str, Any]) -> Mapping[str, Any]:
    """A connection string takes precedence, then an application of Active Directory, then `credentials`."""
    text = _extra(connection, "connection_string")
    if text:
        return _of_connection_string(connection, text)
    named = {"AZURE_STORAGE_ACCOUNT_NAME": _account_name(account)}
    tenant = _extra(connection, "tenant_id")
    if not tenant:
        return {**named, **credentials}
    return {
        **named,
        "AZURE_STORAGE_TENANT_ID": tenant,
        "AZURE_STORAGE_CLIENT_ID": connection.login,
        "AZURE_STORAGE_CLIENT_SECRET": connection.password,
    }


def _account_name(account: str | None) -> str | None:
    """Returns the account of ``https://name.blob.core.windows.net/``, or of the bare name."""
    if not account:
        return None
    return (urlsplit(account).hostname or account).partition(".")[0]


def _of_connection_string(connection: Connection, text: str) -> Mapping[str, Any]:
    parts = dict(part.partition("=")[::2] for part in text.split(";") if part)
    if not parts.get("AccountName"):
        _refuse(connection, "has a connection string without AccountName", "Write login and password instead.")
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": parts["AccountName"],
        "AZURE_STORAGE_ACCOUNT_KEY": parts.get("AccountKey"),
        "AZURE_STORAGE_SAS_TOKEN": parts.get("SharedAccessSignature"),
        "AZURE_STORAGE_ENDPOINT": parts.get("BlobEndpoint"),
    }


def _extra(connection: Connection, name: str) -> Any:
    """Returns an extra by its name, or by the longer name that the forms of older versions of Airflow gave it."""
    given = connection.extra_dejson
    return given.get(name) or given.get(f"extra__{connection.conn_type}__{name}")


def _refuse(connection: Connection, why: str, remedy: str) -> NoReturn:
    message = f"The connection {connection.conn_id!r} {why}, and cannot be used for a lake."
    raise PgetlError(ErrorKind.CONFIG, message, remedy=remedy)


_READERS: Mapping[str, Callable[[Connection], Mapping[str, Any]]] = MappingProxyType(
    {"aws": _aws, "google_cloud_platform": _google, "wasb": _wasb, "adls": _adls}
)
