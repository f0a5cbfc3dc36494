"""Realistic values: names, companies and addresses from the library Faker.

Faker draws values at random. Here it draws a pool for each kind and language once, always the same one, and the keyed
hash of a value picks from the pool. So whole columns are made at once. A pool belongs to a version of Faker: `stamp` is
part of what identifies a rule, and another version with other values has the table copied anew.
"""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgetl.engine.config.transformers import (
    Address,
    Company,
    FirstName,
    FullName,
    Hstore,
    Json,
    LastName,
    Transformer,
)
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import Column
from airflow_provider_pgetl.engine.transform.keyed import Digests, Key, lacking, number
from airflow_provider_pgetl.engine.transform.texts import Function

_DRAWS = 4000
_ADDRESS = {"street": "street_address", "postcode": "postcode", "city": "city", "country": "country"}

Invented = FirstName | LastName | FullName | Company | Address


def kinds(given: Invented) -> tuple[str, ...]:
    """Returns what Faker calls the parts of the value."""
    match given:
        case FullName():
            return ("first_name", "last_name")
        case Address(part="full"):
            return ("street_address", "postcode", "city")
        case Address():
            return (_ADDRESS[given.part],)
        case _:
            return (given.use,)


def invented(given: Invented, column: Column, key: Key) -> Function:
    del column
    pools = [pool(given.locale, kind) for kind in kinds(given)]

    def of(values: pa.Array) -> pa.Array:
        digests = key.digests(values, given.use)
        parts = [_picked(one, digests, at) for at, one in enumerate(pools)]
        if len(parts) == 1:
            return parts[0]
        blank, comma = pa.scalar(" ", pa.large_string()), pa.scalar(", ", pa.large_string())
        if len(parts) == 2:
            return pc.binary_join_element_wise(*parts, blank)
        return pc.binary_join_element_wise(parts[0], pc.binary_join_element_wise(*parts[1:], blank), comma)

    return of


def _picked(values: pa.Array, digests: Digests, part: int) -> pa.Array:
    return values.take(pa.array(number(digests, part) % np.uint64(len(values))))


@cache
def pool(locale: str, kind: str) -> pa.Array:
    """Returns the distinct values of this kind, in the order of their letters."""
    try:
        from faker import Faker
        from faker.config import AVAILABLE_LOCALES
    except ImportError:
        raise lacking("faker") from None
    if locale not in AVAILABLE_LOCALES:
        raise PgetlError(ErrorKind.CONFIG, f'Faker has no locale "{locale}".', remedy="See Faker's list of locales.")
    source = Faker(locale)
    source.seed_instance(0)
    draw = getattr(source, kind)
    found = sorted({str(draw()).replace("\n", ", ") for _ in range(_DRAWS)})
    return pa.array(found, pa.large_string())


def stamp(given: Transformer) -> str:
    """Returns what identifies the pools of a transformer; empty where there are none."""
    if isinstance(given, Json | Hstore):
        inner = given.paths if isinstance(given, Json) else given.keys
        return ",".join(filter(None, map(stamp, inner.values())))
    if not isinstance(given, Invented):
        return ""
    whole = "\0".join(text for kind in kinds(given) for text in pool(given.locale, kind).to_pylist())
    return hashlib.sha256(whole.encode()).hexdigest()[:16]
