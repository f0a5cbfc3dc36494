"""References to connections, and descriptions of connections without their secrets.

Declarations carry *references*, never secrets:

* ``env:NAME``: the URI is in that environment variable;
* ``file:PATH``: the URI is in that file;
* a URI without a password: libpq takes the password from PGPASSWORD, the password file or a service file, by its own
  rules; or a token stands in for the password, and the URI only names what makes the token (`tokens`).

A URI that carries its password literally is refused, whatever it connects to: declarations are logged, committed and
passed in argument lists. This module keeps no resolved URI, and no error quotes one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlsplit

from airflow_provider_pgetl.engine.config.tokens import SECRET_PARAMETERS, Address, split
from airflow_provider_pgetl.engine.model.errors import ErrorKind, Finding, PgetlError, refuse

Key = tuple[str | int, ...]

# Secret parameters of libpq; the keys of SCRAM stand in for the password.
_SECRET_PARAMETERS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_PASSWORD = re.compile(rf"(?:^|\s)(?:{'|'.join(_SECRET_PARAMETERS)})\s*=", re.IGNORECASE)
_PORT = re.compile(r":\d*$")
_POSTGRES_SCHEMES = ("postgresql://", "postgres://")

# The remedy for a URI that libpq cannot read.
READABLE = "Write postgresql://user@host:port/database; percent-encode special characters in its parts."


def resolve(reference: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the URI that the reference stands for."""
    scheme, _, rest = reference.partition(":")
    if scheme == "env":
        return _from_environment(rest, environment)
    if scheme == "file":
        return _from_file(Path(rest).expanduser())
    refuse_literal_secret(reference)
    return reference


def resolve_all(references: Mapping[Key, str], environment: Mapping[str, str] = os.environ) -> Mapping[Key, str]:
    """Returns the URIs, by the keys of the declaration that refer to them. Raises one error for all references that
    cannot be resolved."""
    resolved, missing = {}, []
    for key, reference in references.items():
        try:
            resolved[key] = resolve(reference, environment)
        except PgetlError as error:
            missing.append(replace(Finding.of(error), key=key))
    refuse(missing)
    return resolved


_LEAST_KEY = 16


def resolve_key(reference: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the key of transformers that the reference, ``env:NAME`` or ``file:PATH``, stands for."""
    scheme, _, rest = reference.partition(":")
    try:
        value = _from_environment(rest, environment) if scheme == "env" else _from_file(Path(rest).expanduser())
    except PgetlError as error:
        message = error.message.replace("the connection's URI", "the key")
        raise PgetlError(ErrorKind.CONFIG, message, remedy="Put the key of the transformers there.") from None
    if len(value) < _LEAST_KEY:
        message = f"The key {reference} is shorter than {_LEAST_KEY} characters, and could be guessed."
        remedy = "Make one: python -c 'import secrets; print(secrets.token_hex(32))'."
        raise PgetlError(ErrorKind.CONFIG, message, remedy=remedy)
    return value


def refuse_literal_secret(uri: str) -> None:
    """Raises an error if the URI carries a password; for URIs that are written down in a declaration."""
    if not _carries_secret(uri):
        return
    message = f"The URI of {describe(uri)} carries a password."
    remedy = "Write `env:NAME` or `file:PATH` instead, or leave the password to PGPASSWORD or the password file."
    raise PgetlError(ErrorKind.CONFIG, message, remedy=remedy)


def describe(uri: str) -> str:
    """Returns the connection for people: ``user@host:port/database``, or the reference as it is. Never contains a
    secret."""
    if uri.startswith(("env:", "file:")):
        return uri
    given = _parts(uri)
    if given is None:
        return _without_userinfo(uri)
    user = f"{given['user']}@" if given.get("user") else ""
    database = f"/{given['dbname']}" if given.get("dbname") else ""
    return f"{user}{_addresses(given)}{database}"


def secrets_in(uri: str) -> tuple[str, ...]:
    """Returns the secrets in a resolved URI, for code that must keep them out of its output."""
    given = _parts(uri)
    if given is None:
        return tuple(filter(None, [urlsplit(uri).password]))
    others = (str(given[name]) for name in _SECRET_PARAMETERS[1:] if given.get(name))
    return (*Address(given, split(uri)[1]).secrets, *others)


def _from_environment(name: str, environment: Mapping[str, str]) -> str:
    value = environment.get(name, "").strip()
    if not value:
        message = f"The environment variable {name} is not set."
        raise PgetlError(ErrorKind.CONFIG, message, remedy=f"Set {name} to the connection's URI.")
    return value


def _from_file(path: Path) -> str:
    try:
        value = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        message = f"The file {path} with the connection's URI cannot be read: {why}."
        raise PgetlError(ErrorKind.CONFIG, message, remedy="Check its path and permissions.") from None
    if not value:
        message = f"The file {path} is empty."
        raise PgetlError(ErrorKind.CONFIG, message, remedy="Write the connection's URI into it.")
    return value


def _carries_secret(uri: str) -> bool:
    given = _parts(uri)
    if given is None:
        if uri.startswith(_POSTGRES_SCHEMES):
            raise PgetlError(ErrorKind.CONFIG, "A Postgres URI cannot be read.")
        return _has_password(uri) or _names_password(uri)
    _refuse_strange_port(given)
    address = Address.read(uri)
    return any(given.get(name) for name in _SECRET_PARAMETERS) or any(map(address.settings.get, SECRET_PARAMETERS))


def _parts(uri: str) -> Mapping[str, object] | None:
    """Returns what libpq reads in the URI; None if it cannot read it. libpq's message is dropped: it quotes what could
    not be read, which may be the password. The import is here so that declaring a pipeline needs no libpq."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        return conninfo_to_dict(split(uri)[0])
    except psycopg.Error:
        return None


def _refuse_strange_port(given: Mapping[str, object]) -> None:
    """Raises an error if the port is not a number: a slash that is not percent-encoded in a password makes the rest of
    the password look like a port and a database."""
    if str(given.get("port") or "").strip("0123456789,"):
        raise PgetlError(ErrorKind.CONFIG, "A Postgres URI cannot be read: what should be its port is no number.")


def _has_password(uri: str) -> bool:
    """Whether the URI carries a password. Keys of object stores contain slashes, and one that is not percent-encoded
    makes the rest of the key look like a path."""
    try:
        place = urlsplit(uri)
    except ValueError:
        raise PgetlError(ErrorKind.CONFIG, "A URI cannot be read.") from None
    if place.password is not None:
        return True
    rest = uri.partition("://")[2].removeprefix(place.netloc)
    return "@" in rest and ":" in place.netloc and not _PORT.search(place.netloc)


def _names_password(uri: str) -> bool:
    """Whether a connection string in libpq's other form (``host=… user=…``), which libpq cannot read, names a
    password."""
    return "://" not in uri and _PASSWORD.search(uri) is not None


def _without_userinfo(uri: str) -> str:
    """Returns scheme and host of the URI. An @ after a question mark may belong to the password, and so may what is
    before it; then the host is left out."""
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return "a local path" if "=" not in uri else "a connection"
    place, _, query = rest.partition("?")
    return f"{scheme}://{'…' if '@' in query else place.rpartition('@')[2]}"


def _addresses(given: Mapping[str, object]) -> str:
    said = given.get("host") or given.get("hostaddr")
    if not said and given.get("service"):
        return f"service {given['service']}"
    hosts = str(said or os.environ.get("PGHOST") or "localhost").split(",")
    ports = str(given.get("port") or os.environ.get("PGPORT") or "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return ",".join(f"{host}:{port or '5432'}" for host, port in zip(hosts, ports, strict=False))


# -- Removing secrets from text that pgetl did not write: a traceback, a library's warning. Pure. ----------------------
#
# `PgetlError` never holds a secret. Any other text may hold one, so the secrets of the connections at hand are removed
# in every spelling in which they might be quoted, and so is whatever looks like a password in a URI.

_USERINFO = re.compile(r"(?<=://)[^\s/@]*:[^\s@]*(?=@)")
_PARAMETER = re.compile(
    r"((?:(?:ssl)?password|oauth_client_secret|scram_(?:client|server)_key|aws_secret_access_key|aws_session_token)"
    r"\s*=\s*)('[^']*'|[^\s&']+)",
    re.IGNORECASE,
)
_SECRET_OPTION = re.compile(r"secret|token|key|password|credential|service_account", re.IGNORECASE)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """Returns the text without these secrets, and without anything that looks like a password in a URI."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _PARAMETER.sub(r"\1***", _USERINFO.sub("***", text))


def secrets_of(values: Iterable[str]) -> frozenset[str]:
    """Returns the secrets in resolved references (URIs, or the options of a store as JSON), in every spelling."""
    found = {secret for value in values for secret in _held(value) if secret}
    return frozenset(spelt for secret in found for spelt in (secret, quote(secret), quote(secret, safe="")))


def _held(value: str) -> Iterator[str]:
    if not value.startswith("{"):
        yield from secrets_in(value)
        return
    for name, option in json.loads(value).items():
        if _SECRET_OPTION.search(name):
            yield str(option)
