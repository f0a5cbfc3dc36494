"""From Airflow's connections to what the engine works with.

A pipeline's declaration refers to its servers as ``env:NAME``; the values of those names are made here, from Airflow
connections, in the process that needs them, at the moment it needs them, and are handed on through pipes and the
environments of children only. Nothing here is ever stored, logged, or put into a DAG, an XCom or a trigger.

Of a connection's extras only those listed in `ALLOWED_EXTRAS` reach libpq: an extra must not be able to redirect a
session or load a file by surprise.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.storage_connections import storage_options

if TYPE_CHECKING:
    from airflow.sdk import Connection

SOURCE, STATE, DESTINATION = "PGETL_SOURCE_URI", "PGETL_STATE_URI", "PGETL_DESTINATION_URI"
STORAGE = "PGETL_STORAGE"

# What each connection leads to, of which type it is, and where it is named.
_PURPOSES: Mapping[str, tuple[str, str, str]] = {
    SOURCE: ("the source", "postgres", "`source_conn_id`"),
    STATE: ("the pipeline's state", "postgres", "`state_conn_id`"),
    DESTINATION: ("the destination", "postgres", "the destination's"),
    STORAGE: (
        "the destination's object store",
        "aws, google_cloud_platform, wasb or adls",
        "the destination's `storage_conn_id`",
    ),
}

ALLOWED_EXTRAS = (
    "sslmode",
    "sslcert",
    "sslkey",
    "sslrootcert",
    "sslcrl",
    "sslnegotiation",
    "ssl_min_protocol_version",
    "channel_binding",
    "gssencmode",
    "krbsrvname",
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "target_session_attrs",
    "tcp_user_timeout",
)


@dataclass(frozen=True, slots=True)
class ConnectionIds:
    """The Airflow connections of one pipeline. Ids only: this may be serialised."""

    source: str
    state: str
    destination: str | None = None
    storage: str | None = None

    def as_json(self) -> dict[str, str | None]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Of this version, or of another whose triggers wait in Airflow's database."""
        return cls(**{each.name: data[each.name] for each in fields(cls) if each.name in data})

    @property
    def named(self) -> dict[str, str]:
        """Which connection gives the value of which name."""
        given = {SOURCE: self.source, STATE: self.state, DESTINATION: self.destination, STORAGE: self.storage}
        return {name: conn_id for name, conn_id in given.items() if conn_id is not None}


def environment(ids: ConnectionIds) -> Mapping[str, str]:
    """The values of the declaration's references; for code that runs in a worker."""
    return {name: value(name, conn_id) for name, conn_id in ids.named.items()}


async def aenvironment(ids: ConnectionIds) -> Mapping[str, str]:
    """The same, for code that runs in a triggerer."""
    return {name: await avalue(name, conn_id) for name, conn_id in ids.named.items()}


def value(name: str, conn_id: str) -> str:
    """What one reference stands for; for code that runs in a worker."""
    from airflow.sdk import BaseHook

    with _missed(name, conn_id):
        return _value(name, BaseHook.get_connection(conn_id))


async def avalue(name: str, conn_id: str) -> str:
    """The same, for code that runs in a triggerer."""
    from airflow.sdk import BaseHook

    with _missed(name, conn_id):
        return _value(name, await BaseHook.aget_connection(conn_id))


@contextmanager
def _missed(name: str, conn_id: str) -> Iterator[None]:
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        yield
    except AirflowNotFoundException:
        what, kind, argument = _PURPOSES[name]
        raise PgetlError(
            ErrorKind.CONFIG,
            f"There is no Airflow connection {conn_id!r}, which leads to {what}.",
            remedy=f"Add one of type {kind}, or name another as {argument}.",
        ) from None


def _value(name: str, connection: Connection) -> str:
    return json.dumps(storage_options(connection)) if name == STORAGE else postgres_uri(connection)


def postgres_uri(connection: Connection) -> str:
    """libpq's URI of an Airflow postgres connection."""
    if connection.conn_type not in ("postgres", "postgresql"):
        raise PgetlError(
            ErrorKind.CONFIG,
            f"The connection {connection.conn_id!r} is of type {connection.conn_type!r}, not postgres.",
            remedy="Name an ordinary Airflow postgres connection.",
        )
    user = quote(connection.login or "", safe="")
    secret = f":{quote(connection.password, safe='')}" if connection.password else ""
    place = f"{_host(connection.host)}{f':{connection.port}' if connection.port else ''}"
    extras = {name: str(value) for name, value in connection.extra_dejson.items() if name in ALLOWED_EXTRAS}
    query = f"?{urlencode(extras, quote_via=quote)}" if extras else ""
    return f"postgresql://{user}{secret}{'@' if user else ''}{place}/{quote(connection.schema or '', safe='')}{query}"


def _host(host: str | None) -> str:
    """A name, an address (IPv6 in brackets), or a socket's folder, as a URI spells it."""
    if host is None:
        return ""
    if host.startswith("/"):
        return quote(host, safe="")
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
