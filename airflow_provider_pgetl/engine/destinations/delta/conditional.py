"""Writing an object only where there is none, which delta-rs does for its own commits alone.

The request goes through obstore, which speaks to stores by the same library as delta-rs, under the same options. Those
that only delta-rs knows are left out; where they matter, as a profile of AWS does, the preflight finds that objects
cannot be written in this way (`probing`). A table whose commits are ordered by a lock beside the store (the locking
provider of delta-rs) cannot be written to in this way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError
from obstore.store import from_url

_PREFIX = re.compile(r"^(aws|google|azure_storage|azure)_")
_UNKNOWN = re.compile(r"Configuration key: '([^']*)'")
_TRUE = ("1", "true", "on", "yes", "y")
_OF_THE_CLIENT = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "http1_only",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "randomize_addresses",
    "timeout",
    "user_agent",
}


def create_object(uri: str, options: Mapping[str, str], path: str, data: bytes) -> None:
    """Raises FileExistsError if the object is there, OSError for any other failure."""
    try:
        obstore.put(_store(uri, tuple(sorted(options.items()))), path, data, mode="create", use_multipart=False)
    except AlreadyExistsError as error:
        raise FileExistsError(f"{path} already exists") from error
    except BaseError as error:
        raise OSError(_told(error)) from error
    except NotImplementedError as error:  # as the option `aws_conditional_put` may say
        raise OSError("the store is not asked to write an object only where there is none") from error


def _told(error: BaseError) -> str:
    """Without what obstore adds for those who debug it."""
    return str(error).partition("\n\nDebug source")[0]


@lru_cache(maxsize=16)
def _store(uri: str, options: tuple[tuple[str, str], ...]) -> Any:
    config, client = _told_apart(options)
    while True:
        try:
            opened: Any = from_url  # its overloads tell stores apart by the type of `config`
            return opened(uri, config=config, client_options=client or None)
        except UnknownConfigurationKeyError as error:
            unknown = _UNKNOWN.search(str(error))
            known = {name: value for name, value in config.items() if unknown is None or name != unknown[1].lower()}
            if len(known) == len(config):
                raise OSError(_told(error)) from error
            config = known


def _told_apart(options: tuple[tuple[str, str], ...]) -> tuple[dict[str, str], dict[str, Any]]:
    """What is said of the store, and what of connections, for which obstore has a place of their own."""
    config: dict[str, str] = {}
    client: dict[str, Any] = {}
    for name, value in ((name.lower(), value) for name, value in options):
        bare = _PREFIX.sub("", name)
        if bare not in _OF_THE_CLIENT:
            config[name] = value
        elif value.lower() in _TRUE and bare.startswith(("allow", "http1", "http2_only", "randomize")):
            client[bare] = True
        else:
            client[bare] = value
    return config, client
