"""Taking secrets out of text that nobody has foreseen: a traceback, a library's warning. Pure.

`PgetlError` never holds a secret. Of everything else that cannot be known, so what the connections at hand hold is
taken out in every spelling in which it might be quoted, and whatever looks like a password in a URI as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from airflow_provider_pgetl.engine.secrets import secrets_in

_USERINFO = re.compile(r"(?<=://)[^\s/@]*:[^\s@]*(?=@)")
_PARAMETER = re.compile(
    r"((?:(?:ssl)?password|oauth_client_secret|scram_(?:client|server)_key|aws_secret_access_key|aws_session_token)"
    r"\s*=\s*)('[^']*'|[^\s&']+)",
    re.IGNORECASE,
)
_SECRET_OPTION = re.compile(r"secret|token|key|password|credential|service_account", re.IGNORECASE)


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """The text without these secrets, and without anything that looks like a password in a URI."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _PARAMETER.sub(r"\1***", _USERINFO.sub("***", text))


def secrets_of(values: Iterable[str]) -> frozenset[str]:
    """The secrets that resolved references hold (URIs, or the options of a store as JSON), in every spelling."""
    found = {secret for value in values for secret in _held(value) if secret}
    return frozenset(spelt for secret in found for spelt in (secret, quote(secret), quote(secret, safe="")))


def _held(value: str) -> Iterator[str]:
    if not value.startswith("{"):
        yield from secrets_in(value)
        return
    for name, option in json.loads(value).items():
        if _SECRET_OPTION.search(name):
            yield str(option)
