"""Columns of all types that transformers know, and a key."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from airflow_provider_pgetl.engine.config.transformers import Transformer
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName
from airflow_provider_pgetl.engine.transform.columns import ColumnTransform
from airflow_provider_pgetl.engine.transform.invented import stamp
from airflow_provider_pgetl.engine.transform.keyed import Key
from airflow_provider_pgetl.engine.transform.rules import ColumnRule

KEY = Key("a key of the tests, long enough")
_TYPES: Mapping[str, tuple[int, int]] = {
    "boolean": (16, -1),
    "bytea": (17, -1),
    "smallint": (21, -1),
    "integer": (23, -1),
    "bigint": (20, -1),
    "text": (25, -1),
    "varchar(20)": (1043, 24),
    "varchar(64)": (1043, 68),
    "char(8)": (1042, 12),
    "json": (114, -1),
    "jsonb": (3802, -1),
    "inet": (869, -1),
    "real": (700, -1),
    "double precision": (701, -1),
    "numeric(10,2)": (1700, ((10 << 16) | 2) + 4),
    "numeric": (1700, -1),
    "date": (1082, -1),
    "timestamp": (1114, -1),
    "timestamptz": (1184, -1),
    "uuid": (2950, -1),
}
HSTORE = PgType(20_000, "public.hstore", extension="hstore")
MOOD = PgType(20_001, "public.mood", "enum", labels=("sad", "ok"))
OTHERS = {"hstore": HSTORE, "mood": MOOD, "xml": PgType(142, "xml")}


def column(sql_type: str, name: str = "c", *, not_null: bool = False) -> Column:
    if sql_type in OTHERS:
        return Column(name, OTHERS[sql_type], sql_type, not_null=not_null)
    oid, modifier = _TYPES[sql_type]
    return Column(name, PgType(oid, sql_type), sql_type, modifier, not_null)


def texts(values: Sequence[str | None]) -> pa.Array:
    return pa.array([None if value is None else value.encode() for value in values], pa.large_binary())


def transform(
    sql_type: str,
    given: Transformer,
    values: Sequence[str | None],
    *,
    key: Key = KEY,
    null_on_error: bool = False,
    **others: Sequence[str | None],
) -> list[str | None]:
    """Returns what the transformer makes of a column with these values."""
    rule = ColumnRule(TableName("public", "t"), 0, column(sql_type), given, "env:KEY", null_on_error, stamp(given))
    made = ColumnTransform(rule, key).of(texts(values), lambda name: texts(others[name]))
    assert made.type == pa.large_binary()
    return [None if value is None else value.decode() for value in made.to_pylist()]


def one(sql_type: str, given: Transformer, value: str, **others: Sequence[str | None]) -> str | None:
    (made,) = transform(sql_type, given, [value], **others)
    return made
