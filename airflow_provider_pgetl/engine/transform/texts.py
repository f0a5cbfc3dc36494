"""Transformers of texts, UUIDs, addresses of networks, and bytes."""

from __future__ import annotations

import base64
import ipaddress
import uuid
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgetl.engine.config.transformers import (
    Choice,
    Email,
    Encrypt,
    Hash,
    Ip,
    Mask,
    Phone,
    String,
    Uuid,
    family_of,
    longest,
)
from airflow_provider_pgetl.engine.model.tables import Column
from airflow_provider_pgetl.engine.transform.keyed import (
    DIGEST,
    Key,
    base64_text,
    hexadecimal,
    number,
    texts_of_width,
)

Function = Callable[[pa.Array], pa.Array]
"""A function from distinct texts, none of them null, to as many texts."""

LOCAL_PART = 20


def hashed(given: Hash, column: Column, key: Key) -> Function:
    if family_of(column) == "bytes":
        size = min(given.length or DIGEST, DIGEST)
        return lambda values: _as_bytea(hexadecimal(key.digests(values, "hash"), 2 * size))
    encode, most = (hexadecimal, 64) if given.encoding == "hex" else (base64_text, 43)
    length = min(one for one in (given.length, longest(column), most) if one is not None)
    return lambda values: encode(key.digests(values, "hash"), length)


def _as_bytea(digits: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar("\\x", pa.large_string()), digits, _nothing())


def _nothing() -> pa.Scalar:
    return pa.scalar("", pa.large_string())


def _joined(*parts: pa.Array | str) -> pa.Array:
    each = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*each, _nothing())


# -- masks ------------------------------------------------------------------------------------------------------------

_STARS = "************"
_KEPT = {"address": (6, 0), "mobile": (4, 3), "telephone": (0, 4), "id": (0, 4), "credit_card": (6, 4)}
_LEAST_HIDDEN = 4
_FORMS = {
    "email": (r"^([^@\s])[^@]*@([^@\s]+)$", r"\1***@\2"),
    "url": (r"(?s)^([A-Za-z][A-Za-z0-9+.-]*://)(?:[^/?#@]*@)?([^/?#@]+)(?:[/?#][^@]*)?$", r"\1\2/***"),
}


def masked(given: Mask, column: Column, key: Key | None) -> Function:
    del column, key
    if given.kind == "default":
        return _all_hidden
    if given.kind == "password":
        return lambda values: pa.array([_STARS] * len(values), pa.large_string())
    if given.kind == "name":
        return lambda values: pc.replace_substring_regex(values, r"(\S)\S*", r"\1***")
    if given.kind in _FORMS:
        return lambda values: _in_form(values, *_FORMS[given.kind])
    if given.pattern is not None:
        pattern = given.pattern
        return lambda values: _matches_hidden(values, pattern)
    return lambda values: _middle_hidden(values, *_KEPT[given.kind])


def _all_hidden(values: pa.Array) -> pa.Array:
    return pc.binary_repeat(pa.repeat(pa.scalar("*", pa.large_string()), len(values)), pc.utf8_length(values))


def _in_form(values: pa.Array, form: str, shown: str) -> pa.Array:
    """Masks values of this form; a value of another form is hidden as a whole."""
    fits, made = pc.match_substring_regex(values, form), pc.replace_substring_regex(values, form, shown)
    return made if pc.all(fits).as_py() else pc.if_else(fits, made, _all_hidden(values))


def _matches_hidden(values: pa.Array, pattern: str) -> pa.Array:
    """Hides what matches. A value in which nothing does is hidden as a whole: it is not of the expected form."""
    made = pc.replace_substring_regex(values, pattern, "***")
    return pc.if_else(pc.equal(made, values), _all_hidden(values), made)


def _middle_hidden(values: pa.Array, head: int, tail: int) -> pa.Array:
    """Keeps the first and the last characters of values that have at least `_LEAST_HIDDEN` between them."""
    lengths = pc.utf8_length(values)
    before = pc.utf8_slice_codeunits(values, 0, head) if head else _nothing()
    behind = pc.utf8_slice_codeunits(values, -tail) if tail else _nothing()
    middle = pc.utf8_slice_codeunits(values, head, -tail if tail else None)
    shown = _joined(before, _all_hidden(middle), behind)
    return pc.if_else(pc.greater_equal(lengths, head + tail + _LEAST_HIDDEN), shown, _all_hidden(values))


# -- others -----------------------------------------------------------------------------------------------------------


def email(given: Email, column: Column, key: Key) -> Function:
    limit = longest(column)

    def of(values: pa.Array) -> pa.Array:
        local = hexadecimal(key.digests(values, "email"), LOCAL_PART)
        if not given.keep_domain:
            room = LOCAL_PART if limit is None else min(LOCAL_PART, limit - len(given.domain) - 1)
            return _joined(pc.utf8_slice_codeunits(local, 0, room), f"@{given.domain}")
        found = pc.replace_substring_regex(values, r"(?s)^.*@", "")
        there = pc.and_(pc.match_substring(values, "@"), pc.match_substring_regex(found, r"^[A-Za-z0-9.-]+$"))
        made = _joined(local, "@", pc.if_else(there, found, pa.scalar(given.domain, pa.large_string())))
        return made if limit is None else pc.utf8_slice_codeunits(made, -limit)

    return of


_SEPARATORS = np.zeros(256, dtype=np.bool_)
_SEPARATORS[np.frombuffer(b" +-()/.", dtype=np.uint8)] = True


def phone(given: Phone, column: Column, key: Key) -> Function:
    """Every byte but separators becomes a digit, so that nothing that is no number passes."""
    del column

    def of(values: pa.Array) -> pa.Array:
        letters, rows, places = _letters(values)
        hidden = ~_SEPARATORS[letters]
        if given.keep:
            before = np.cumsum(hidden) - hidden
            first = np.concatenate([[0], np.flatnonzero(np.diff(rows)) + 1]) if len(rows) else rows
            runs = np.zeros(len(values), dtype=np.int64)
            runs[rows[first]] = before[first]
            digits = (letters >= ord("0")) & (letters <= ord("9"))
            hidden &= ~(digits & (before - runs[rows] < given.keep))
        digests = key.digests(values, "phone")
        made = letters.copy()
        made[hidden] = ord("0") + digests[rows[hidden], places[hidden] % DIGEST] % 10
        return _like(values, made)

    return of


def any_string(given: String, column: Column, key: Key) -> Function:
    alphabet = np.frombuffer(given.alphabet.encode(), dtype=np.uint8)
    limit = longest(column)

    def of(values: pa.Array) -> pa.Array:
        digests = key.digests(values, "string")
        if given.length is not None:
            length = given.length if limit is None else min(given.length, limit)
            columns = np.arange(length) % DIGEST
            return texts_of_width(alphabet[digests[:, columns] % len(alphabet)])
        blank = _all_hidden(values)
        _, rows, places = _letters(blank)
        return _like(blank, alphabet[digests[rows, places % DIGEST] % len(alphabet)])

    return of


def _letters(values: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the bytes of all values, and for each the number of its value and its place in it."""
    ends = np.frombuffer(values.buffers()[1], dtype=np.int64)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(values.buffers()[2] or b"", dtype=np.uint8)[ends[0] : ends[-1]]
    lengths = np.diff(ends)
    rows = np.repeat(np.arange(len(values)), lengths)
    places = np.arange(len(data)) - np.repeat(ends[:-1] - ends[0], lengths)
    return data, rows, places


def _like(values: pa.Array, letters: np.ndarray) -> pa.Array:
    """Returns values of the same lengths, with these bytes."""
    ends = np.frombuffer(values.buffers()[1], dtype=np.int64)[values.offset : values.offset + len(values) + 1]
    buffers = [None, pa.py_buffer(ends - ends[0]), pa.py_buffer(np.ascontiguousarray(letters))]
    return pa.Array.from_buffers(pa.large_string(), len(values), buffers)


def any_uuid(given: Uuid, column: Column, key: Key) -> Function:
    del given, column

    def of(values: pa.Array) -> pa.Array:
        digests = key.digests(values, "uuid")[:, :16]
        return pa.array([str(uuid.UUID(bytes=one.tobytes(), version=4)) for one in digests], pa.large_string())

    return of


def chosen(given: Choice, column: Column, key: Key) -> Function:
    del column
    values_of = pa.array(given.values, pa.large_string())

    def of(values: pa.Array) -> pa.Array:
        return values_of.take(pa.array(number(key.digests(values, "choice")) % np.uint64(len(values_of))))

    return of


def network(given: Ip, column: Column, key: Key | None) -> Function:
    del column, key
    return lambda values: pa.array([_prefix(text, given) for text in values.to_pylist()], pa.large_string())


def _prefix(text: str, given: Ip) -> str:
    address, slash, length = text.partition("/")
    found = ipaddress.ip_address(address)
    bits = found.max_prefixlen - (given.v4 if found.version == 4 else given.v6)
    return f"{type(found)(int(found) >> bits << bits)}{slash}{int(length) if slash else ''}"


def encrypted(given: Encrypt, column: Column, key: Key) -> Function:
    del given
    siv, as_bytea = key.siv(), family_of(column) == "bytes"

    def of(values: pa.Array) -> pa.Array:
        made = [siv.encrypt(text, None) for text in values.cast(pa.large_binary()).to_pylist()]
        texts = [f"\\x{one.hex()}" if as_bytea else base64.b64encode(one).decode() for one in made]
        return pa.array(texts, pa.large_string())

    return of
