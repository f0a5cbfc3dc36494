"""Families of column types, by which a transformer says what it can be used for; and what a type allows its values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from airflow_provider_pgetl.engine.model.tables import Column

Family = Literal[
    "text", "integer", "float", "numeric", "boolean", "date", "timestamp", "uuid", "bytes", "json", "inet", "hstore",
    "enum", "other",
]  # fmt: skip

_FAMILIES: Mapping[int, Family] = {
    16: "boolean",
    17: "bytes",
    19: "text",  # name
    20: "integer",
    21: "integer",
    23: "integer",
    25: "text",
    114: "json",
    650: "inet",  # cidr
    700: "float",
    701: "float",
    869: "inet",
    1042: "text",  # char(n)
    1043: "text",
    1082: "date",
    1114: "timestamp",
    1184: "timestamp",
    1700: "numeric",
    2950: "uuid",
    3802: "json",
}
_NAME, _PADDED, _VARYING = 19, 1042, 1043
_INTEGER_BITS: Mapping[int, int] = {21: 16, 23: 32, 20: 64}


def family_of(column: Column) -> Family:
    root = column.type.root
    if root.kind == "enum":
        return "enum"
    if root.kind == "base" and not root.built_in:
        return {"citext": "text", "hstore": "hstore"}.get(root.name.rpartition(".")[2], "other")  # type: ignore[return-value]
    return _FAMILIES.get(root.oid, "other")


def longest(column: Column) -> int | None:
    """Returns how many characters a value may have; None if that is not limited."""
    root = column.type.root
    if root.oid == _NAME:
        return 63
    if root.oid not in (_PADDED, _VARYING):
        return None
    if column.modifier >= 0:
        return column.modifier - 4
    sized = re.search(r"\((\d+)\)", root.sql_type or column.sql_type)
    return int(sized[1]) if sized else None


def is_padded(column: Column) -> bool:
    """Whether the type is char(n), whose values have blanks at their end that mean nothing."""
    return column.type.root.oid == _PADDED


def integer_bits(column: Column) -> int:
    return _INTEGER_BITS[column.type.root.oid]
