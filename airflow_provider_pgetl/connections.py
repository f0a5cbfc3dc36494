"""Resolves Airflow connections to the values that the engine works with.

A pipeline's declaration refers to its servers as ``env:NAME``. The values of those names are made here from Airflow
connections, in the process that needs them and at the moment it needs them, and are passed on only through pipes and
the environments of child processes. Nothing here is ever stored, logged, or put into a DAG, an XCom or a trigger.

Of a connection's extras those in `LIBPQ_EXTRAS` reach libpq. An extra that would change how a session begins, and
cannot be honoured, is refused by its name: a setting that is dropped silently is taken for one that holds.

With the extra `iam` the password is a token, as it is to Airflow's own hook. The token is not made here: the URI
contains the credentials that sign for it (`engine.config.tokens`), and the code that opens a session makes a token for
that session. The fields of the AWS connection that `aws_conn_id` names are part of the URI, so that every session signs
with the credentials of that connection.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, NoReturn, Self
from urllib.parse import quote, urlencode

from airflow_provider_pgetl.engine.config.tokens import AWS
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.storage_connections import storage_options

if TYPE_CHECKING:
    from airflow.sdk import Connection


# -- From an Airflow connection of AWS to the parameters of a URI by which tokens are signed. --------------------------
#
# The fields of the connection are read as the hooks of Airflow's Amazon provider read them. A field that would make
# other credentials sign, and cannot be honoured outside Airflow, is refused by its name. Where the connection holds no
# keys, the credentials of the machine sign.

_REFUSED = ("profile_name", "session_kwargs")


def signing_parameters(connection: Connection) -> dict[str, str]:
    """Returns keys, region, and the role that is assumed with them. The result contains secrets."""
    if connection.conn_type != "aws":
        _refuse_signing(
            connection, f"is of type {connection.conn_type!r}, not aws", "Name one of type aws as `aws_conn_id`."
        )
    extra: Mapping[str, Any] = connection.extra_dejson
    for name in _REFUSED:
        if extra.get(name):
            _refuse_signing(
                connection, f"has {name!r}", "Write keys, or a `role_arn`, or neither: then the machine signs."
            )
    key, secret = connection.login, connection.password
    if not (key and secret):
        key, secret = extra.get("aws_access_key_id"), extra.get("aws_secret_access_key")
    given = {
        "aws_region": extra.get("region_name"),
        "aws_access_key_id": key,
        "aws_secret_access_key": secret,
        "aws_session_token": extra.get("aws_session_token"),
        **_role(connection, extra),
    }
    return {name: str(value) for name, value in given.items() if value}


def _role(connection: Connection, extra: Mapping[str, Any]) -> Mapping[str, Any]:
    if not extra.get("role_arn"):
        return {}
    if (method := extra.get("assume_role_method", "assume_role")) != "assume_role":
        _refuse_signing(connection, f"has {method!r} as 'assume_role_method'", "Only `assume_role` is known here.")
    arguments: Mapping[str, Any] = extra.get("assume_role_kwargs") or {}
    for name in arguments.keys() - {"ExternalId"}:
        _refuse_signing(connection, f"has {name!r} in 'assume_role_kwargs'", "Only `ExternalId` is known here.")
    return {
        "aws_role_arn": extra["role_arn"],
        "aws_external_id": arguments.get("ExternalId") or extra.get("external_id"),
    }


def _refuse_signing(connection: Connection, why: str, remedy: str) -> NoReturn:
    message = f"The connection {connection.conn_id!r} {why}, and cannot sign for tokens."
    raise PgetlError(ErrorKind.CONFIG, message, remedy=remedy)


# -- The values of a pipeline's connections. ---------------------------------------------------------------------------

SOURCE, STATE, DESTINATION = "PGETL_SOURCE_URI", "PGETL_STATE_URI", "PGETL_DESTINATION_URI"
STORAGE = "PGETL_STORAGE"
TRANSFORM_KEY = "PGETL_TRANSFORM_KEY"

# Of each connection: what it leads to, of which type it is, and by which argument it is named.
_PURPOSES: Mapping[str, tuple[str, str, str]] = {
    SOURCE: ("the source", "postgres or pgetl", "`source_conn_id`"),
    STATE: ("the pipeline's state", "postgres", "`state_conn_id`"),
    DESTINATION: ("the destination", "postgres", "the destination's"),
    STORAGE: (
        "the destination's object store",
        "aws, google_cloud_platform, wasb or adls",
        "the destination's `storage_conn_id`",
    ),
    TRANSFORM_KEY: ("the key of transformers", "any, with the key as its password,", "`key_conn_id`"),
}

# The extras that are passed to libpq. Server, database and user are given by the connection's own fields.
LIBPQ_EXTRAS = frozenset({
    "sslmode", "sslnegotiation", "sslcompression", "sslcert", "sslkey", "sslcertmode", "sslpassword", "sslrootcert",
    "sslcrl", "sslcrldir", "sslsni", "ssl_min_protocol_version", "ssl_max_protocol_version", "channel_binding",
    "require_auth", "requirepeer", "passfile", "gssencmode", "gsslib", "gssdelegation", "krbsrvname", "options",
    "connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout",
    "target_session_attrs", "load_balance_hosts", "min_protocol_version", "max_protocol_version",
})  # fmt: skip
# Extras that are ignored: those of cursors and SQLAlchemy, which are for Airflow's own hook, and those that pgetl sets
# itself for each of its sessions.
_OF_OTHERS = frozenset({
    "cursor", "sqlalchemy_scheme", "sqlalchemy_query", "application_name", "fallback_application_name",
    "client_encoding",
})  # fmt: skip
# Extras of the token: each but `iam` and `token` means nothing unless `iam` is set.
_OF_IAM = frozenset({
    "iam", "aws_conn_id", "region_name", "redshift", "redshift-serverless", "cluster-identifier", "workgroup-name",
    "azure_conn_id", "token",
})  # fmt: skip
_OTHER_TOKENS = ("azure_conn_id", "redshift", "redshift-serverless")
_DEFAULT_SIGNER = "aws_default"


@dataclass(frozen=True, slots=True)
class ConnectionIds:
    """The ids of the Airflow connections of one pipeline. It holds ids only, so it may be serialised."""

    source: str
    state: str
    destination: str | None = None
    storage: str | None = None
    transform_key: str | None = None

    def as_json(self) -> dict[str, str | None]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Reads what this version, or another whose triggers are stored in Airflow's database, has written."""
        return cls(**{each.name: data[each.name] for each in fields(cls) if each.name in data})

    @property
    def named(self) -> dict[str, str]:
        """The id of the connection that gives the value of each name."""
        given = {
            SOURCE: self.source,
            STATE: self.state,
            DESTINATION: self.destination,
            STORAGE: self.storage,
            TRANSFORM_KEY: self.transform_key,
        }
        return {name: conn_id for name, conn_id in given.items() if conn_id is not None}


def environment(ids: ConnectionIds) -> Mapping[str, str]:
    """Returns the values of the declaration's references; for code that runs in a worker."""
    return {name: value(name, conn_id) for name, conn_id in ids.named.items()}


async def aenvironment(ids: ConnectionIds) -> Mapping[str, str]:
    """As `environment`, for code that runs in a triggerer."""
    return {name: await avalue(name, conn_id) for name, conn_id in ids.named.items()}


def value(name: str, conn_id: str) -> str:
    """Returns the value of one reference; for code that runs in a worker."""
    from airflow.sdk import BaseHook

    return _looked_up(name, conn_id, BaseHook.get_connection)


async def avalue(name: str, conn_id: str) -> str:
    """As `value`, for code that runs in a triggerer."""
    from airflow.providers.common.compat.sdk import AirflowNotFoundException
    from airflow.sdk import BaseHook

    with _missed(name, conn_id, _unseen_in_triggerers()):
        connection = await BaseHook.aget_connection(conn_id)
    signer_id = _signer_id(name, connection)
    if signer_id is None:
        return _value(name, connection, None)
    try:
        signer = await BaseHook.aget_connection(signer_id)
    except AirflowNotFoundException:
        _expect_unnamed(connection)
        signer = None
    return _value(name, connection, signer)


def stored_environment(ids: ConnectionIds, team: str | None = None) -> Mapping[str, str]:
    """As `environment`, for code that runs where Airflow's own commands do, with the connections that a DAG of that
    team may use."""
    return {name: stored_value(name, conn_id, team) for name, conn_id in ids.named.items()}


def stored_value(name: str, conn_id: str, team: str | None = None) -> str:
    from airflow.models.connection import Connection

    def look_up(wanted: str) -> Connection:
        of_a_team = () if team is None else (team,)  # older releases of Airflow take no team
        return Connection.get_connection_from_secrets(wanted, *of_a_team)

    return _looked_up(name, conn_id, look_up)


def _looked_up(name: str, conn_id: str, look_up: Callable[[str], Connection]) -> str:
    from airflow.providers.common.compat.sdk import AirflowNotFoundException

    with _missed(name, conn_id):
        connection = look_up(conn_id)
    signer_id = _signer_id(name, connection)
    if signer_id is None:
        return _value(name, connection, None)
    try:
        signer = look_up(signer_id)
    except AirflowNotFoundException:
        _expect_unnamed(connection)
        signer = None
    return _value(name, connection, signer)


def _signer_id(name: str, connection: Connection) -> str | None:
    """Returns the id of the AWS connection that signs for this connection's tokens; None if it needs none, or if the
    machine's own credentials sign."""
    if name in (STORAGE, TRANSFORM_KEY) or not connection.extra_dejson.get("iam"):
        return None
    signer: str | None = connection.extra_dejson.get("aws_conn_id", _DEFAULT_SIGNER)
    return signer


@contextmanager
def _missed(name: str, conn_id: str, hint: str = "") -> Iterator[None]:
    from airflow.providers.common.compat.sdk import AirflowNotFoundException

    try:
        yield
    except AirflowNotFoundException:
        what, kind, argument = _PURPOSES[name]
        raise PgetlError(
            ErrorKind.CONFIG,
            f"There is no Airflow connection {conn_id!r}, which leads to {what}.",
            remedy=f"Add one of type {kind}, or name another as {argument}.{hint}",
        ) from None


def _expect_unnamed(connection: Connection) -> None:
    """Raises if the connection names the AWS connection that is missing: other credentials must not sign silently.
    Airflow's default AWS connection may be missing."""
    named = connection.extra_dejson.get("aws_conn_id")
    if named is not None:
        raise PgetlError(
            ErrorKind.CONFIG,
            f"There is no Airflow connection {named!r}, which signs for the tokens of {connection.conn_id!r}.",
            remedy="Add one of type aws, or write null as `aws_conn_id`: then the machine's own credentials sign.",
        ) from None


def _unseen_in_triggerers() -> str:
    """Returns a hint for deployments with several teams: Airflow's triggerer looks up connections without naming a
    team, even a triggerer that was started with `--team-name`."""
    from airflow.providers.common.compat.sdk import conf

    if not conf.getboolean("core", "multi_team", fallback=False):
        return ""
    return " A triggerer does not see connections of a team: give it this one in its own environment, or to all teams."


def _value(name: str, connection: Connection, signer: Connection | None) -> str:
    if name == TRANSFORM_KEY:
        return _key_in(connection)
    return json.dumps(storage_options(connection)) if name == STORAGE else postgres_uri(connection, signer)


def _key_in(connection: Connection) -> str:
    if not connection.password:
        message = f"The connection {connection.conn_id!r} has no password, which is to be the key of transformers."
        raise PgetlError(ErrorKind.CONFIG, message, remedy="Write the key into its password.")
    key: str = connection.password
    return key


def postgres_uri(connection: Connection, signer: Connection | None = None) -> str:
    """Returns the URI of an Airflow connection of type postgres, or pgetl, which differs only by how it is tested.
    `signer`: the AWS connection that signs for its tokens."""
    if connection.conn_type not in ("postgres", "postgresql", "pgetl"):
        raise PgetlError(
            ErrorKind.CONFIG,
            f"The connection {connection.conn_id!r} is of type {connection.conn_type!r}, not postgres.",
            remedy="Name an ordinary Airflow postgres connection.",
        )
    user = quote(connection.login or "", safe="")
    token = _token(connection, signer)
    secret = f":{quote(connection.password, safe='')}" if connection.password and not token else ""
    place = f"{_host(connection.host)}{f':{connection.port}' if connection.port else ''}"
    extras = {**_libpq_extras(connection), **token}
    query = f"?{urlencode(extras, quote_via=quote)}" if extras else ""
    return f"postgresql://{user}{secret}{'@' if user else ''}{place}/{quote(connection.schema or '', safe='')}{query}"


def _libpq_extras(connection: Connection) -> dict[str, str]:
    given: Mapping[str, Any] = connection.extra_dejson
    for name in given.keys() - LIBPQ_EXTRAS - _OF_OTHERS - _OF_IAM:
        _refuse(connection, name, f"Take it out. Known are {', '.join(sorted(LIBPQ_EXTRAS))}.")
    # A field of Airflow's form that is left empty is no setting.
    return {name: _text(value) for name, value in given.items() if name in LIBPQ_EXTRAS and value not in (None, "")}


def _token(connection: Connection, signer: Connection | None) -> dict[str, str]:
    """Returns the parameters of the URI that describe the token, if the password is one."""
    given: Mapping[str, Any] = connection.extra_dejson
    if not given.get("iam"):
        return {"token": str(given["token"])} if given.get("token") else {}
    for name in _OTHER_TOKENS:
        if given.get(name):
            _refuse(
                connection, name, "Tokens are made for RDS and Aurora. Give the role a password, and take `iam` out."
            )
    region = {"aws_region": str(given["region_name"])} if given.get("region_name") else {}
    return {"token": AWS, **({} if signer is None else signing_parameters(signer)), **region}


def _refuse(connection: Connection, name: str, remedy: str) -> NoReturn:
    message = f"The connection {connection.conn_id!r} has the extra {name!r}, which pgetl cannot honour."
    raise PgetlError(ErrorKind.CONFIG, message, remedy=remedy)


def _text(value: Any) -> str:
    """Returns the value as libpq writes it: 1 and 0 for true and false."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def _host(host: str | None) -> str:
    """Returns a name, an address (IPv6 in brackets), or the folder of a socket, as a URI spells it."""
    if host is None:
        return ""
    if host.startswith("/"):
        return quote(host, safe="")
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
