"""From an Airflow connection of AWS to the parameters of a URI that say who signs for a token.

Its fields are read as the hooks of Airflow's Amazon provider read them. What would have somebody else sign, and cannot
be honoured outside Airflow, is refused by its name. Where the connection holds no keys, those of the machine sign.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError

if TYPE_CHECKING:
    from airflow.sdk import Connection

_REFUSED = ("profile_name", "session_kwargs")


def signing_parameters(connection: Connection) -> dict[str, str]:
    """Keys, region, and the role that is assumed with them. Secrets are among them."""
    if connection.conn_type != "aws":
        _refuse(connection, f"is of type {connection.conn_type!r}, not aws", "Name one of type aws as `aws_conn_id`.")
    extra: Mapping[str, Any] = connection.extra_dejson
    for name in _REFUSED:
        if extra.get(name):
            _refuse(connection, f"has {name!r}", "Write keys, or a `role_arn`, or neither: then the machine signs.")
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
        _refuse(connection, f"has {method!r} as 'assume_role_method'", "Only `assume_role` is known here.")
    arguments: Mapping[str, Any] = extra.get("assume_role_kwargs") or {}
    for name in arguments.keys() - {"ExternalId"}:
        _refuse(connection, f"has {name!r} in 'assume_role_kwargs'", "Only `ExternalId` is known here.")
    return {
        "aws_role_arn": extra["role_arn"],
        "aws_external_id": arguments.get("ExternalId") or extra.get("external_id"),
    }


def _refuse(connection: Connection, why: str, remedy: str) -> NoReturn:
    message = f"The connection {connection.conn_id!r} {why}, and cannot sign for tokens."
    raise PgetlError(ErrorKind.CONFIG, message, remedy=remedy)
