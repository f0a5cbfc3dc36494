"""Security labels of PostgreSQL Anonymizer as rules: ``SECURITY LABEL FOR anon ON COLUMN people.email IS 'MASKED WITH
FUNCTION anon.fake_email()'``. The extension itself is not needed: its functions are not called.

A label becomes the transformer that comes nearest. What a label says that has no counterpart is refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError

_VALUE = re.compile(r"MASKED\s+WITH\s+VALUE\s+(?P<value>.+)", re.IGNORECASE | re.DOTALL)
_FUNCTION = re.compile(r"MASKED\s+WITH\s+FUNCTION\s+(?:anon\.)?(?P<name>\w+)\s*\(.*\)", re.IGNORECASE | re.DOTALL)
_NOT = re.compile(r"NOT\s+MASKED", re.IGNORECASE)
_QUOTED = re.compile(r"'(?P<plain>(?:[^']|'')*)'|\$(?P<tag>\w*)\$(?P<dollar>.*)\$(?P=tag)\$", re.DOTALL)

Rule = tuple[str, Mapping[str, Any]]
"""The name of a transformer, and its options."""

_PREFIXES = ("fake_", "dummy_", "pseudo_", "random_", "partial_")
_NAMES: Mapping[str, Rule] = {
    "address": ("address", {}),
    "city": ("address", {"part": "city"}),
    "city_name": ("address", {"part": "city"}),
    "company": ("company", {}),
    "company_name": ("company", {}),
    "country": ("address", {"part": "country"}),
    "country_name": ("address", {"part": "country"}),
    "email": ("email", {}),
    "free_email": ("email", {}),
    "safe_email": ("email", {}),
    "first_name": ("first_name", {}),
    "last_name": ("last_name", {}),
    "name": ("full_name", {}),
    "phone": ("phone", {}),
    "phone_number": ("phone", {}),
    "cell_number": ("phone", {}),
    "postcode": ("address", {"part": "postcode"}),
    "zip": ("address", {"part": "postcode"}),
    "zip_code": ("address", {"part": "postcode"}),
    "street_name": ("address", {"part": "street"}),
    "string": ("string", {}),
    "uuidv4": ("uuid", {}),
    "int": ("integer", {}),
    "bigint": ("integer", {}),
}
_FUNCTIONS: Mapping[str, Rule] = {
    "partial": ("mask", {}),
    "partial_email": ("mask", {"kind": "email"}),
    "hash": ("hash", {}),
    "digest": ("hash", {}),
    "lorem_ipsum": ("string", {}),
}


def rule_of(table: str, column: str, label: str) -> Rule:
    """Returns the rule that a label on this column stands for. Raises if there is none."""
    if _NOT.fullmatch(label.strip()):
        return "keep", {}
    if (given := _VALUE.fullmatch(label.strip())) is not None:
        return _constant(given["value"].strip())
    called = _FUNCTION.fullmatch(label.strip())
    found = None if called is None else _by_function(called["name"].lower())
    if found is None:
        message = f"The security label on {column} of {table} has no counterpart among the transformers: {label}."
        remedy = "Declare a rule for the column, which takes precedence over its label."
        raise PgetlError(ErrorKind.CONFIG, message, remedy=remedy)
    return found


def _constant(text: str) -> Rule:
    if text.upper() == "NULL":
        return "null", {}
    quoted = _QUOTED.fullmatch(text)
    if quoted is None:
        return "constant", {"value": text}
    return "constant", {"value": quoted["dollar"] if quoted["plain"] is None else quoted["plain"].replace("''", "'")}


def _by_function(name: str) -> Rule | None:
    if name in _FUNCTIONS:
        return _FUNCTIONS[name]
    return next((_NAMES.get(name.removeprefix(one)) for one in _PREFIXES if name.startswith(one)), None)
