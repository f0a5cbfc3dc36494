"""Transformers of numbers and booleans."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.changes.values import arrow_type
from airflow_provider_pgetl.engine.config.transformers import Boolean, Float, Integer, integer_bits
from airflow_provider_pgetl.engine.model.tables import Column
from airflow_provider_pgetl.engine.transform.keyed import Key, Numbers, fraction, number
from airflow_provider_pgetl.engine.transform.texts import Function

# -- whole numbers ----------------------------------------------------------------------------------------------------


def integer(given: Integer, column: Column, key: Key | None) -> Function:
    bits = integer_bits(column)

    def of(values: pa.Array) -> pa.Array:
        numbers = np.asarray(values.cast(pa.int64()))
        return pa.array(_other(given, bits, key, values, numbers)).cast(pa.large_string())

    return of


def _other(
    given: Integer, bits: int, key: Key | None, values: pa.Array, numbers: NDArray[np.int64]
) -> NDArray[np.int64]:
    if given.bucket is not None:
        return np.maximum(numbers // given.bucket * given.bucket, _least_multiple(given.bucket, bits))
    assert key is not None, "only buckets need no key"
    if given.minimum is not None and given.maximum is not None:
        span = given.maximum - given.minimum + 1
        drawn = number(key.digests(values, "integer range"))
        return _added(given.minimum, drawn % np.uint64(span) if span < 1 << 64 else drawn)
    if given.noise is not None:
        return _noisy(numbers, given.noise, bits, number(key.digests(values, "integer noise")))
    return _permuted(numbers, bits, key)


def _least_multiple(bucket: int, bits: int) -> int:
    """Returns the lowest multiple that the type has: below it, rounding down would leave the type."""
    return -((1 << (bits - 1)) // bucket) * bucket


def _added(least: int, drawn: Numbers) -> NDArray[np.int64]:
    """Adds modulo 2**64, which is exact where the sum is in range."""
    return (np.uint64(least % (1 << 64)) + drawn).view(np.int64)


def _noisy(numbers: NDArray[np.int64], noise: int, bits: int, drawn: Numbers) -> NDArray[np.int64]:
    """Adds noise; at the ends of the type's range it is cut off."""
    moved = _added(-noise, drawn % np.uint64(2 * noise + 1))
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    room_up, room_down = most - np.maximum(numbers, 0), least - np.minimum(numbers, 0)
    return np.asarray(numbers + np.clip(moved, room_down, room_up))


def _permuted(numbers: NDArray[np.int64], bits: int, key: Key) -> NDArray[np.int64]:
    """Permutes the numbers from 0 on, and those below 0, among themselves."""
    below = numbers < 0
    sizes = np.where(below, ~numbers, numbers).astype(np.uint64)
    found = np.empty(len(numbers), dtype=np.int64)
    for there, purpose in ((~below, "integer"), (below, "integer below zero")):
        found[there] = key.permuted(sizes[there], bits - 1, purpose).astype(np.int64)
    return np.where(below, ~found, found)


# -- others -----------------------------------------------------------------------------------------------------------


def real(given: Float, column: Column, key: Key | None) -> Function:
    """NaN and infinities are no numbers to hide, and stay."""

    def of(values: pa.Array) -> pa.Array:
        numbers = np.asarray(values.cast(pa.float64()))
        plain = np.isfinite(numbers)
        made = _moved(given, key, values, np.where(plain, numbers, 0.0))
        return pc.if_else(pa.array(plain), _written(made, column), values)

    return of


def _moved(given: Float, key: Key | None, values: pa.Array, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    if given.bucket is not None:
        return np.asarray(np.floor(numbers / given.bucket) * given.bucket)
    assert key is not None, "only buckets need no key"
    if given.minimum is not None and given.maximum is not None:
        return given.minimum + fraction(key.digests(values, "float range")) * (given.maximum - given.minimum)
    noise = given.noise or 0.0
    return numbers + noise * (2 * fraction(key.digests(values, "float noise")) - 1)


def _written(numbers: NDArray[np.float64], column: Column) -> pa.Array:
    """Returns the numbers as Postgres reads them in this column: those of numeric(p,s) have s places."""
    wanted = arrow_type(column)
    if pa.types.is_decimal(wanted):
        most = (10 ** (wanted.precision - wanted.scale) - 1) if wanted.precision > wanted.scale else 0
        cut = np.clip(numbers, -float(most), float(most)) if most else numbers
        return pa.array([f"{one:.{wanted.scale}f}" for one in cut.tolist()], pa.large_string())
    if wanted == pa.float32():
        with np.errstate(over="ignore"):
            narrow = numbers.astype(np.float32)
        return pa.array([str(one) for one in narrow], pa.large_string())
    return pa.array([repr(one) for one in numbers.tolist()], pa.large_string())


def boolean(given: Boolean, column: Column, key: Key) -> Function:
    """Gets the values of the column `by`."""
    del column

    def of(values: pa.Array) -> pa.Array:
        is_true = fraction(key.digests(values, "boolean")) < given.probability
        return pa.array(np.where(is_true, "t", "f").tolist(), pa.large_string())

    return of
