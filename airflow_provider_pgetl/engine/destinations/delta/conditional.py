"""Writing an object only where there is none, which delta-rs does for its own commits alone.

The request goes through obstore, which speaks to stores by the same library as delta-rs, under the same options. Those
that only delta-rs knows are left out. A table whose commits are ordered by a lock beside the store (the locking
provider of delta-rs) cannot be written to in this way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, UnknownConfigurationKeyError
from obstore.store import from_url

_PREFIXES = {"s3": "aws_", "s3a": "aws_", "gs": "google_", "gcs": "google_"}
_ALLOW_HTTP = re.compile(r"((aws|google|azure)_)?allow_http", re.IGNORECASE)
_UNKNOWN = re.compile(r"Configuration key: '([^']*)'")


def create_object(uri: str, options: Mapping[str, str], path: str, data: bytes) -> None:
    """Raises FileExistsError if the object is there, OSError for any other failure."""
    try:
        obstore.put(_store(uri, tuple(sorted(options.items()))), path, data, mode="create", use_multipart=False)
    except AlreadyExistsError as error:
        raise FileExistsError(f"{path} already exists") from error
    except BaseError as error:
        raise OSError(_told(error)) from error


def _told(error: BaseError) -> str:
    """Without what obstore adds for those who debug it."""
    return str(error).partition("\n\nDebug source")[0]


@lru_cache(maxsize=16)
def _store(uri: str, options: tuple[tuple[str, str], ...]) -> Any:
    prefix = _PREFIXES.get(urlsplit(uri).scheme, "azure_")
    named = ((name.lower(), value) for name, value in options if not _ALLOW_HTTP.fullmatch(name))
    config = {name if name.startswith(prefix) else prefix + name: value for name, value in named}
    allows_http = any(_ALLOW_HTTP.fullmatch(name) and value.lower() == "true" for name, value in options)
    while True:
        try:
            opened: Any = from_url  # its overloads tell stores apart by the type of `config`
            return opened(uri, config=config, client_options={"allow_http": True} if allows_http else None)
        except UnknownConfigurationKeyError as error:
            unknown = _UNKNOWN.search(str(error))
            known = {name: value for name, value in config.items() if unknown is None or name != unknown[1].lower()}
            if len(known) == len(config):
                raise OSError(_told(error)) from error
            config = known
