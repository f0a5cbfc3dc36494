"""Types whose values are those of a wider type as well: integers of more bits, and double precision for real.

A cast between them keeps every value, each server casts alike, and several casts come to the same as one. So a column
whose type was widened at the source is widened elsewhere by a cast, and values that were sent before are converted.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct

from airflow_provider_pgetl.engine.model.tables import Column

_INT2, _INT4, _INT8, _FLOAT4, _FLOAT8 = 21, 23, 20, 700, 701
_WIDER = {_INT2: (_INT4, _INT8), _INT4: (_INT8,), _FLOAT4: (_FLOAT8,)}
_BYTES = {_INT4: 4, _INT8: 8}
_REAL, _DOUBLE, _LENGTH = Struct("!f"), Struct("!d"), Struct("!I")

Field = Callable[[bytes], bytes]
"""Converts a field of pgoutput: a byte that tells its form, its length, its value."""


def widens(before: Column, after: Column) -> bool:
    return after.type.oid in _WIDER.get(before.type.oid, ())


def widened_text(value: str, before: Column, after: Column) -> str:
    """Returns a value of one type, in text form, as one of the other. Types that do not widen have the same text."""
    if not widens(before, after) or before.type.oid != _FLOAT4:
        return value
    (wide,) = _REAL.unpack(_REAL.pack(float(value)))
    return repr(wide) if abs(wide) < float("inf") else value


def widening(before: Column, after: Column) -> Field | None:
    """Returns what converts fields of one type to fields of the other; None if they are the same."""
    if not widens(before, after):
        return None

    def convert(field: bytes) -> bytes:
        form, value = field[:1], field[1 + _LENGTH.size :]
        if form == b"t":
            value = widened_text(value.decode(), before, after).encode()
        elif form == b"b" and before.type.oid == _FLOAT4:
            value = _DOUBLE.pack(*_REAL.unpack(value))
        elif form == b"b":
            value = int.from_bytes(value, "big", signed=True).to_bytes(_BYTES[after.type.oid], "big", signed=True)
        else:
            return field
        return form + _LENGTH.pack(len(value)) + value

    return convert
