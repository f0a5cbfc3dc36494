"""Converts Postgres' text form of values to Arrow, both for copied rows and for changes.

Both paths pass the same bytes, those of the type's output function under the settings that all our sessions pin (ISO
dates, UTC, hex bytea, shortest exact floats): the copy path reads them from COPY, the change path from pgoutput. So the
same value is converted in the same way on either path.

Invariants
* `arrow_type(column)` depends on the column alone; `decode` returns exactly that type, whatever the values.
* A value that its Arrow type cannot hold (an infinite date, NaN in a bounded numeric) raises an error that names it.
* Whole columns are converted at once. Only moments outside the years 1 to 9999 are converted one by one.

Types without an exact counterpart in Arrow stay text, as Postgres writes it: unbounded numeric, time, interval, arrays,
ranges, composites, json, uuid and all others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import Column

# By OID, which for these types is the same on every server; their names have several spellings.
_NUMERIC = 1700
_TYPES: Mapping[int, pa.DataType] = {
    16: pa.bool_(),
    17: pa.binary(),
    21: pa.int16(),
    23: pa.int32(),
    20: pa.int64(),
    26: pa.int64(),  # oid
    700: pa.float32(),
    701: pa.float64(),
    1082: pa.date32(),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", "UTC"),
}
_LONGEST_DECIMAL = 38
_SIZED = re.compile(r"numeric\((\d+),(-?\d+)\)")
_MOMENT = re.compile(rb"(\d{4,})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?(?:\+00)?( BC)?")
_EPOCH = date(1970, 1, 1).toordinal()
_DAYS_IN_400_YEARS = 146_097


def arrow_type(column: Column) -> pa.DataType:
    """Returns the Arrow type of this column's values."""
    oid = column.type.root.oid
    if oid == _NUMERIC:
        return _decimal(*_digits(column)) or pa.string()
    return _TYPES.get(oid, pa.string())


def decode(column: Column, texts: pa.Array) -> pa.Array:
    """Returns typed values of one column. `texts` is their text as Arrow binary, null where the value is NULL."""
    wanted = arrow_type(column)
    try:
        return _decoder(wanted)(texts, wanted)
    except _Unholdable as error:
        raise _refused(column, error.value, wanted) from None
    except pa.ArrowInvalid as error:
        message = f"A value of column {column.name} ({column.sql_type}) is no {wanted}: {error}."
        raise PgetlError(ErrorKind.VALUE, message) from None


class _Unholdable(Exception):
    """A value that the Arrow type cannot hold."""

    def __init__(self, value: bytes) -> None:
        super().__init__(value)
        self.value = value


def _refused(column: Column, value: bytes, wanted: pa.DataType) -> PgetlError:
    text = value.decode(errors="replace")
    message = f"Column {column.name} ({column.sql_type}) holds {text}, which {wanted} cannot represent."
    return PgetlError(ErrorKind.VALUE, message)


def _digits(column: Column) -> tuple[int, int]:
    """Returns precision and scale of a numeric; those of a domain are those of its base type. Precision 0:
    unbounded."""
    if column.modifier >= 0:
        modifier = column.modifier - 4
        return (modifier >> 16) & 0xFFFF, ((modifier & 0x7FF) ^ 1024) - 1024
    match = _SIZED.fullmatch(column.type.root.sql_type or "")
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _decimal(precision: int, scale: int) -> pa.DataType | None:
    """Returns the decimal type for numeric(p,s); None where it is unbounded or has more digits than a decimal can
    have."""
    if not precision:
        return None
    digits, places = max(precision, scale, precision - scale), max(scale, 0)
    return pa.decimal128(digits, places) if digits <= _LONGEST_DECIMAL else None


# -- families of types ------------------------------------------------------------------------------------------------

_Decoder = Callable[[pa.Array, pa.DataType], pa.Array]


def _decoder(wanted: pa.DataType) -> _Decoder:
    if pa.types.is_boolean(wanted):
        return _booleans
    if pa.types.is_binary(wanted):
        return _bytes
    if pa.types.is_temporal(wanted):
        return _moments
    return _decimals if pa.types.is_decimal(wanted) else _parsed


def _parsed(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Converts text, and those types whose text form Arrow parses as Postgres writes it."""
    return pc.cast(pc.cast(texts, pa.string()), wanted)


def _booleans(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    return pc.cast(pc.equal(texts, pa.scalar(b"t", texts.type)), wanted)


def _decimals(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    _refuse_first(texts, pc.equal(texts, pa.scalar(b"NaN", texts.type)))
    return _parsed(texts, wanted)


def _refuse_first(texts: pa.Array, bad: pa.Array) -> None:
    if pc.any(bad).as_py():
        raise _Unholdable(texts.filter(bad)[0].as_py())


def _bytes(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Converts ``\\x…`` to bytes: drops the first two characters of each value and decodes the rest as hex digits."""
    texts = pc.cast(texts, pa.large_binary())
    ends = _offsets(texts)
    digits = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)[ends[0] : ends[-1]]
    lengths = np.diff(ends)
    keep = np.ones(len(digits), dtype=np.bool_)
    starts = (ends[:-1] - ends[0])[lengths > 0]
    keep[starts], keep[starts + 1] = False, False
    nibbles = _NIBBLES[digits[keep]]
    data = ((nibbles[::2] << 4) | nibbles[1::2]).tobytes()
    offsets = np.concatenate([[0], np.cumsum(np.maximum(lengths - 2, 0) // 2)]).astype(np.int64)
    valid = np.packbits(pc.is_valid(texts).to_numpy(zero_copy_only=False), bitorder="little")
    buffers = [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pc.cast(pa.Array.from_buffers(pa.large_binary(), len(texts), buffers), wanted)


def _offsets(texts: pa.LargeBinaryArray) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    every = np.frombuffer(texts.buffers()[1] or bytes(8), dtype=np.int64)
    return every[texts.offset : texts.offset + len(texts) + 1]


_NIBBLES = np.zeros(256, dtype=np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", dtype=np.uint8)] = np.arange(16)


# -- moments ----------------------------------------------------------------------------------------------------------


def _moments(texts: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Converts dates and timestamps: Arrow parses the years 1 to 9999, `_reckon` computes the few others."""
    plain = _plain(texts)
    parsed = _parsed(pc.if_else(plain, texts, pa.scalar(None, texts.type)), wanted)
    odd = pc.invert(plain).fill_null(False)
    if not pc.any(odd).as_py():
        return parsed
    width = pa.int32() if pa.types.is_date(wanted) else pa.int64()
    numbers = pa.array([_reckon(text, wanted) for text in texts.filter(odd).to_pylist()], width)
    return pc.replace_with_mask(parsed, odd, numbers.view(wanted))


def _plain(texts: pa.Array) -> pa.Array:
    """Returns whether each value is a moment with a year of four digits that is not BC."""
    year_ends = pc.equal(pc.binary_slice(texts, 4, 5), pa.scalar(b"-", texts.type))
    before_christ = pc.ends_with(pc.cast(texts, pa.string()), " BC")
    return pc.and_(year_ends, pc.invert(before_christ))


def _reckon(text: bytes, wanted: pa.DataType) -> int:
    """Returns the days (for a date) or microseconds since 1970 of a moment of any year, in the proleptic Gregorian
    calendar."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise _Unholdable(text)
    year, month, day, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:6])
    days = _days(1 - year if match[8] else year, month, day)
    if pa.types.is_date(wanted):
        return days
    fraction = int((match[7] or b"").ljust(6, b"0"))
    moment = ((days * 24 + hours) * 60 + minutes) * 60_000_000 + seconds * 1_000_000 + fraction
    if moment >= 1 << 63:
        raise _Unholdable(text)
    return moment


def _days(year: int, month: int, day: int) -> int:
    """Returns the days since 1970. The calendar repeats every 400 years, so any year can be mapped to one that `date`
    supports."""
    cycles, within = divmod(year - 1, 400)
    return cycles * _DAYS_IN_400_YEARS + date(within + 1, month, day).toordinal() - _EPOCH
