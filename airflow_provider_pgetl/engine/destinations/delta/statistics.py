"""What the log says of a file, so that readers, and our own merges, need not open it: rows, nulls, bounds.

Bounds are true, if not always tight: long strings are cut (the upper bound is then made longer than anything that
begins so), and where a bound cannot be told (NaN, a year that JSON has no word for) there is none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Bounds = tuple[Any, Any]
_LONGEST = 32
_COLUMNS = 32
_MILLISECOND = timedelta(milliseconds=1)
_BEYOND = "\U0010ffff"


def indexed_columns(schema: pa.Schema, key: Sequence[str]) -> list[str]:
    """The columns that bounds are kept of: the key's, and the first ones, as other writers do."""
    scalar = [field.name for field in schema if not pa.types.is_nested(field.type)]
    return [*key, *(name for name in scalar[:_COLUMNS] if name not in key)]


class Statistics:
    """Gathered from a Parquet file's footer; `strange` are the columns that hold NaN."""

    def __init__(self, footer: pq.FileMetaData, columns: Iterable[str], strange: Collection[str]) -> None:
        self.rows = int(footer.num_rows)
        self.nulls: dict[str, int] = {}
        self.bounds: dict[str, Bounds] = {}
        places = {footer.schema.column(at).path: at for at in range(footer.num_columns)}
        for name in columns:
            parts = [footer.row_group(group).column(places[name]).statistics for group in range(footer.num_row_groups)]
            self._add(name, parts, bounded=name not in strange)

    def _add(self, name: str, parts: list[Any], *, bounded: bool) -> None:
        if any(part is None or not part.has_null_count for part in parts):
            return
        self.nulls[name] = sum(part.null_count for part in parts)
        filled = [part for part in parts if part.num_values]
        if not bounded or not filled or not all(part.has_min_max for part in filled):
            return
        try:
            self.bounds[name] = min(part.min for part in filled), max(part.max for part in filled)
        except (OverflowError, ValueError):
            return  # a moment that Python cannot name: the file has no bounds there

    def as_json(self) -> str:
        lower, upper = {}, {}
        for name, (least, most) in self.bounds.items():
            words = _lower(least), _upper(most)
            if None not in words:
                lower[name], upper[name] = words
        # Decimals are numbers in Delta's statistics, with all their digits.
        text = json.dumps(
            {"numRecords": self.rows, "minValues": lower, "maxValues": upper, "nullCount": self.nulls},
            default=_Digits.mark,
        )
        return _Digits.unmark(text)


class _Digits:
    """json has no exact decimals: they pass through it as marked text."""

    _MARK = "\ue0f7"

    @classmethod
    def mark(cls, value: Any) -> str:
        if isinstance(value, Decimal):
            return f"{cls._MARK}{value:f}{cls._MARK}"
        raise TypeError(f"statistics hold {type(value).__name__}")

    @classmethod
    def unmark(cls, text: str) -> str:
        mark = json.dumps(cls._MARK)[1:-1]
        return text.replace(f'"{mark}', "").replace(f'{mark}"', "")


def nan_columns(table: pa.Table) -> set[str]:
    """The columns of floats in which there is NaN, which has no place in an order."""
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    return {name for name in floats if pa.compute.any(pa.compute.is_nan(table.column(name))).as_py()}


def _lower(value: Any) -> Any:
    return value[:_LONGEST] if isinstance(value, str) else _plain(value)


def _upper(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else value[:_LONGEST] + _BEYOND
    return _plain(value)


def _plain(value: Any) -> Any:
    """As Delta writes it; None for what has no such form."""
    if isinstance(value, bool | bytes):
        return None
    if isinstance(value, datetime):
        moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        return moment.isoformat(timespec="microseconds") + ("" if value.tzinfo is None else "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def merged_bounds(stats: Mapping[str, Any], names: Sequence[str]) -> tuple[Bounds | None, ...]:
    """Of one file as the log has it (`min`, `max` as dicts), the bounds of these columns."""
    least, most = stats.get("min") or {}, stats.get("max") or {}
    return tuple(_widened(least.get(name), most.get(name)) for name in names)


def _widened(least: Any, most: Any) -> Bounds | None:
    """Other writers cut moments to milliseconds, upper bounds too."""
    if least is None or most is None:
        return None
    try:
        return (least, most + _MILLISECOND) if isinstance(most, datetime) else (least, most)
    except OverflowError:
        return None
