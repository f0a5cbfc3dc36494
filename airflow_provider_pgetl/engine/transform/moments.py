"""Transformers of dates and timestamps. Infinite ones are no moments to hide, and stay."""

from __future__ import annotations

from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from airflow_provider_pgetl.engine.changes.values import arrow_type, decode
from airflow_provider_pgetl.engine.config.transformers import Date, Timestamp
from airflow_provider_pgetl.engine.model.tables import Column
from airflow_provider_pgetl.engine.transform.keyed import Digests, Key, number

Integers = NDArray[np.int64]
_DAY = 86_400_000_000
_EPOCH = date(1970, 1, 1).toordinal()
_CYCLE_DAYS = 146_097  # of 400 years, after which the calendar repeats
_FIRST, _LAST = date.min.toordinal() - _EPOCH, date.max.toordinal() - _EPOCH


def moved(given: Date | Timestamp, column: Column, key: Key | None, values: pa.Array, by: pa.Array) -> pa.Array:
    """Returns other moments for these, none of which is null. `by` are the values that decide about a shift."""
    infinite = pc.ends_with(values, "infinity")
    odd = pc.any(infinite).as_py()
    finite = pc.if_else(infinite, pa.scalar("1970-01-01", values.type), values) if odd else values
    days, times = _parts(column, finite)
    drawn = None if key is None or given.truncate is not None else key.digests(by, given.use)
    days, times = _other(given, days, times, drawn)
    made = _written(column, days, times)
    return pc.if_else(infinite, values, made) if odd else made


def _parts(column: Column, values: pa.Array) -> tuple[Integers, Integers]:
    """Returns the days since 1970, and the microseconds since midnight."""
    numbers = decode(column, values.cast(pa.large_binary()))
    if pa.types.is_date(arrow_type(column)):
        days = np.asarray(numbers.view(pa.int32())).astype(np.int64)
        return days, np.zeros(len(days), dtype=np.int64)
    moments = np.asarray(numbers.view(pa.int64()))
    days = moments // _DAY
    return days, moments - days * _DAY


def _other(
    given: Date | Timestamp, days: Integers, times: Integers, drawn: Digests | None
) -> tuple[Integers, Integers]:
    if given.truncate is not None:
        return _truncated(given.truncate, days, times)
    assert drawn is not None, "only truncation needs no key"
    if given.shift_days is not None:
        return days + _shift(drawn, given.shift_days), times
    first, last = date.fromisoformat(given.earliest or ""), date.fromisoformat(given.latest or "")
    chosen = number(drawn) % np.uint64((last - first).days + 1)
    instants = number(drawn, 1) % np.uint64(_DAY // 1_000_000) * np.uint64(1_000_000)
    is_date = isinstance(given, Date)
    return chosen.astype(np.int64) + (first.toordinal() - _EPOCH), times if is_date else instants.astype(np.int64)


def _shift(drawn: Digests, most: int) -> Integers:
    """Returns days from -most to most, but not 0, which would leave the moment as it is."""
    chosen = (number(drawn) % np.uint64(2 * most)).astype(np.int64) - most
    return np.where(chosen < 0, chosen, chosen + 1)


def _truncated(unit: str, days: Integers, times: Integers) -> tuple[Integers, Integers]:
    if unit in ("minute", "hour"):
        size = 60_000_000 if unit == "minute" else 3_600_000_000
        return days, times // size * size
    none = np.zeros_like(times)
    if unit == "day":
        return days, none
    if unit == "week":
        return days - (days + 3) % 7, none  # 1970 began on a Thursday
    months = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    size = {"month": 1, "quarter": 3, "year": 12}[unit]
    firsts = (months // size * size).astype("datetime64[M]").astype("datetime64[D]")
    return firsts.astype(np.int64), none


# -- moments as texts -------------------------------------------------------------------------------------------------


def _written(column: Column, days: Integers, times: Integers) -> pa.Array:
    """Returns the moments as Postgres writes them."""
    is_date = pa.types.is_date(arrow_type(column))
    zone = "+00" if column.type.root.oid == 1184 else ""
    plain = (days >= _FIRST) & (days <= _LAST)
    texts = _plainly_written(np.where(plain, days, 0), times, is_date, zone)
    if plain.all():
        return texts
    clocks = _plainly_written(np.zeros_like(days), times, is_date, "").to_pylist()
    both = zip(plain.tolist(), texts.to_pylist(), days.tolist(), clocks, strict=True)
    written = [text if easy else f"{_oddly_written(day, clock[10:], zone)}" for easy, text, day, clock in both]
    return pa.array(written, pa.large_string())


def _plainly_written(days: Integers, times: Integers, is_date: bool, zone: str) -> pa.Array:
    if is_date:
        return pa.array(days.astype(np.int32)).view(pa.date32()).cast(pa.large_string())
    texts = pa.array(days * _DAY + times).view(pa.timestamp("us")).cast(pa.large_string())
    short = pc.replace_substring_regex(pc.replace_substring_regex(texts, r"0+$", ""), r"\.$", "")
    exact = pc.if_else(pc.match_substring(texts, "."), short, texts)
    return pc.binary_join_element_wise(exact, pa.scalar(zone, pa.large_string()), pa.scalar("", pa.large_string()))


def _oddly_written(days: int, clock: str, zone: str) -> str:
    """Writes a day before the year 1 or behind the year 9999."""
    cycles, within = divmod(days + _EPOCH - 1, _CYCLE_DAYS)
    found = date.fromordinal(within + 1)
    year = found.year + 400 * cycles
    era = " BC" if year < 1 else ""
    return f"{1 - year if year < 1 else year:04}-{found:%m-%d}{clock}{zone}{era}"
