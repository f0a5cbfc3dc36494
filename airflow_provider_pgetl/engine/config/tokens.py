"""A server's address, and the short-lived token of a cloud's IAM that may stand in for its password.

    postgresql://pgetl@shop.abc.eu-west-1.rds.amazonaws.com/shop?token=aws-iam&sslmode=verify-full&sslrootcert=…

Such a URI carries no secret: it names what makes the password. Code that opens a session asks for the parameters of
that session and so gets a token of its own, in whatever process it runs: the command line, the streaming worker hours
after its start, a Spark executor. No token is kept, passed on, or written anywhere.

The token is signed with the credentials of the machine, which the cloud's own library finds. Airflow's connections may
hold keys of AWS; these are parameters of the URI as well. A URI with keys is as secret as one with a password, and is
passed in the same ways.

A token is sent as it is, not as a proof of it. Therefore TLS is required: `sslmode=require` where no sslmode is given.

`token` and the parameters beside it are understood in a URI only, not in libpq's other form, ``host=… user=…``.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NoReturn
from urllib.parse import unquote

from airflow_provider_pgetl.engine.config.validation import suggestion
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError

AWS, GOOGLE = "aws-iam", "gcp-iam"
PARAMETERS = (
    "token",
    "aws_region",
    "aws_role_arn",
    "aws_external_id",
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
)
SECRET_PARAMETERS = ("aws_secret_access_key", "aws_session_token")

_SCHEMES = ("postgresql://", "postgres://")
_ENCRYPTED = ("require", "verify-ca", "verify-full")
_REGION = re.compile(r"\.([a-z0-9-]+)\.rds\.amazonaws\.com(?:\.cn)?$")
_GOOGLE_SCOPES = (
    "https://www.googleapis.com/auth/sqlservice.login",
    "https://www.googleapis.com/auth/alloydb.login",
)
_RENEW_SECONDS = 300.0
_AWS_PASSING = ("ConnectionError", "HTTPClientError", "CredentialRetrievalError", "MetadataRetrievalError")
_INSTALL = "Install airflow-provider-pgetl[{}] wherever sessions are opened: on Spark's executors, too."


@dataclass(frozen=True, slots=True)
class Address:
    """`given`: the parameters that libpq gets; `settings`: the parameters of the token, which it does not get. Both may
    hold secrets."""

    given: Mapping[str, Any] = field(repr=False)
    settings: Mapping[str, str] = field(repr=False)

    @classmethod
    def read(cls, uri: str) -> Address:
        """Raises `psycopg.ProgrammingError`, with a message that quotes the URI, if libpq cannot read the URI."""
        from psycopg.conninfo import conninfo_to_dict

        plain, settings = split(uri)
        address = cls(conninfo_to_dict(plain), settings)
        if settings:
            _check(address)
        return address

    @property
    def secrets(self) -> tuple[str, ...]:
        """The secrets of the address, for code that must keep them out of its output."""
        found = (self.given.get("password"), *(self.settings.get(name) for name in SECRET_PARAMETERS))
        return tuple(str(one) for one in found if one)

    def parameters(self) -> dict[str, Any]:
        """Returns the parameters for one new session, with a token made now. May wait for answers of the cloud's
        servers."""
        if not self.settings:
            return {**self.given}
        sslmode = self.given.get("sslmode") or os.environ.get("PGSSLMODE") or "require"
        _check_encrypted(str(sslmode))
        return {**self.given, "sslmode": sslmode, "password": _MAKERS[self.settings["token"]](self)}


def split(uri: str) -> tuple[str, Mapping[str, str]]:
    """Returns the URI as libpq reads it, and the parameters of the token, which are empty if the URI names no token."""
    place, mark, query = uri.rpartition("?")
    if not mark or not uri.startswith(_SCHEMES):
        return uri, {}
    pairs = [part.partition("=") for part in query.split("&")]
    settings = {name: unquote(value) for name, _, value in pairs if name in PARAMETERS}
    if "token" not in settings:
        return uri, {}
    rest = "&".join("".join(pair) for pair in pairs if pair[0] not in PARAMETERS)
    return f"{place}?{rest}" if rest else place, settings


def _check(address: Address) -> None:
    given, kind = address.given, address.settings["token"]
    if kind not in _MAKERS:
        _refuse(
            f'There is no token "{kind}"{suggestion(kind, _MAKERS)}', f"Write one of {', '.join(_MAKERS)} as `token`."
        )
    if given.get("password"):
        _refuse("A URI has both a password and a token.", "Leave one of the two.")
    if not given.get("user"):
        _refuse("A URI with a token names no user.", "Name the role that the token is for: postgresql://role@host/….")
    if given.get("sslmode"):
        _check_encrypted(str(given["sslmode"]))
    if kind == AWS and (not given.get("host") or any("," in str(given.get(name)) for name in ("host", "port"))):
        _refuse("A token of AWS is for one host, which the URI must name.", "Name the endpoint of the instance.")


def _check_encrypted(sslmode: str) -> None:
    if sslmode not in _ENCRYPTED:
        _refuse(
            f"A token would be sent where sslmode={sslmode} allows a connection without TLS.",
            "Set sslmode to verify-full, with the cloud's root certificates as sslrootcert; or at least to require.",
        )


def _refuse(message: str, remedy: str) -> NoReturn:
    raise PgetlError(ErrorKind.CONFIG, message, remedy=remedy)


# -- AWS --------------------------------------------------------------------------------------------------------------


def _aws(address: Address) -> str:
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        _refuse("A token of AWS needs boto3, which is not installed here.", _INSTALL.format("aws"))
    host, settings = str(address.given["host"]), address.settings
    named = _REGION.search(host)
    region = settings.get("aws_region") or (named[1] if named else None)
    try:
        signer = _signer(region, *(settings.get(name) for name in PARAMETERS[2:]))
        return signer.token(host, int(address.given.get("port") or os.environ.get("PGPORT") or 5432), address)
    except (BotoCoreError, ClientError) as error:
        raise _aws_failure(error) from None


@lru_cache(maxsize=8)
def _signer(region: str | None, role: str | None, external_id: str | None, *keys: str | None) -> _Signer:
    """Returns one signer for all sessions of a process: it keeps the credentials, and renews temporary ones."""
    return _Signer(region, role, external_id, keys)


class _Signer:
    """Signs tokens with the credentials of this machine, or with the given keys; as a role that these may assume, where
    one is named. May be used by several threads."""

    def __init__(
        self, region: str | None, role: str | None, external_id: str | None, keys: tuple[str | None, ...]
    ) -> None:
        import boto3

        self._session = boto3.Session(*keys, region_name=region)
        self._role = {"RoleArn": role, "RoleSessionName": "pgetl"} if role else None
        if self._role and external_id:
            self._role["ExternalId"] = external_id
        self._lock = threading.Lock()
        self._client: Any = None
        self._until = 0.0

    def token(self, host: str, port: int, address: Address) -> str:
        with self._lock:
            if self._client is None or (self._role is not None and time.time() > self._until - _RENEW_SECONDS):
                self._client = self._begun().client("rds")
            token: str = self._client.generate_db_auth_token(
                DBHostname=host, Port=port, DBUsername=str(address.given["user"])
            )
        return token

    def _begun(self) -> Any:
        import boto3

        if self._role is None:
            return self._session
        assumed = self._session.client("sts").assume_role(**self._role)["Credentials"]
        self._until = assumed["Expiration"].timestamp()
        return boto3.Session(
            assumed["AccessKeyId"],
            assumed["SecretAccessKey"],
            assumed["SessionToken"],
            region_name=self._session.region_name,
        )


def _aws_failure(error: Exception) -> PgetlError:
    """Of an answer from AWS only the code is quoted: the sentence may repeat what was sent."""
    from botocore import exceptions

    if isinstance(error, exceptions.NoRegionError):
        return PgetlError(
            ErrorKind.CONFIG, "A token of AWS needs a region.", remedy="Add aws_region to the URI, or set AWS_REGION."
        )
    if isinstance(error, exceptions.ClientError):
        code = str(error.response.get("Error", {}).get("Code", "an error"))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        passes = status >= 500 or code.startswith("Throttl")
        words = f"{error.operation_name} was answered with {code}"
    else:
        passes = isinstance(error, tuple(getattr(exceptions, name) for name in _AWS_PASSING))
        words = " ".join(str(error).split()).rstrip(".")
    return PgetlError(
        ErrorKind.CONNECTION if passes else ErrorKind.AUTHENTICATION,
        f"AWS gives no token: {words}.",
        remedy="Give the machine a role of AWS, or credentials as boto3 finds them; the role of the URI must be one "
        "that they may assume.",
    )


# -- Google -----------------------------------------------------------------------------------------------------------


def _google(_: Address) -> str:
    try:
        import google.auth.transport.requests
        from google.auth.exceptions import GoogleAuthError, TransportError
    except ImportError:
        _refuse("A token of Google Cloud needs google-auth, which is not installed here.", _INSTALL.format("gcp"))
    try:
        credentials = _google_credentials()
        with _GOOGLE_LOCK:
            if not credentials.valid:
                credentials.refresh(google.auth.transport.requests.Request())
        return str(credentials.token)
    except GoogleAuthError as error:
        raise PgetlError(
            ErrorKind.CONNECTION if error.retryable or isinstance(error, TransportError) else ErrorKind.AUTHENTICATION,
            f"Google Cloud gives no token: {type(error).__name__}.",
            remedy="Give the machine a service account, or name the file of one in GOOGLE_APPLICATION_CREDENTIALS.",
        ) from None


_GOOGLE_LOCK = threading.Lock()


@lru_cache(maxsize=1)
def _google_credentials() -> Any:
    """Returns the credentials for all sessions of a process. Google's tokens are not bound to one server, and are valid
    for an hour."""
    import google.auth

    return google.auth.default(scopes=_GOOGLE_SCOPES)[0]


_MAKERS: Mapping[str, Callable[[Address], str]] = MappingProxyType({AWS: _aws, GOOGLE: _google})
