"""Postgres' text to Arrow, without a server; tests/engine/stream/copying shows that a real one writes such texts."""

import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.changes.values import arrow_type, decode
from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.engine.model.tables import Column, PgType
from tests.raising import raises

EPOCH = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)


OIDS = {
    "bool": 16,
    "bytea": 17,
    "int8": 20,
    "int2": 21,
    "int4": 23,
    "text": 25,
    "oid": 26,
    "float4": 700,
    "float8": 701,
    "int4[]": 1007,
    "bpchar": 1042,
    "date": 1082,
    "time": 1083,
    "timestamp": 1114,
    "timestamptz": 1184,
    "numeric": 1700,
    "jsonb": 3802,
}


def column(type_name: str, modifier: int = -1) -> Column:
    return Column("c", PgType(OIDS[type_name], type_name), type_name, modifier)


def numeric(precision: int, scale: int) -> Column:
    return column("numeric", ((precision << 16) | (scale & 0x7FF)) + 4)


def decoded(of: Column, *texts: bytes | None) -> list[Any]:
    return decode(of, pa.array(texts, pa.binary())).to_pylist()


@pytest.mark.parametrize(
    ("of", "texts", "values"),
    [
        (column("bool"), [b"t", b"f", None], [True, False, None]),
        (column("int2"), [b"-32768", b"32767"], [-32768, 32767]),
        (column("int8"), [b"-9223372036854775808", None], [-(2**63), None]),
        (column("oid"), [b"4294967295"], [2**32 - 1]),
        (column("float8"), [b"1e-320", b"-Infinity", b"Infinity"], [1e-320, -math.inf, math.inf]),
        (numeric(5, 2), [b"-0.05", b"999.99", None], [Decimal("-0.05"), Decimal("999.99"), None]),
        (numeric(3, -2), [b"12300"], [Decimal(12300)]),
        (numeric(2, 4), [b"0.0012"], [Decimal("0.0012")]),
        (column("numeric"), [b"1.50", b"NaN", b"-Infinity"], ["1.50", "NaN", "-Infinity"]),
        (numeric(39, 0), [b"9" * 39], ["9" * 39]),
        (column("text"), [b"", 'ü\n"\\'.encode(), None], ["", 'ü\n"\\', None]),
        (column("bpchar"), [b"a   "], ["a   "]),
        (column("bytea"), [b"\\x", b"\\x00ff7f", None, b"\\xa0"], [b"", b"\x00\xff\x7f", None, b"\xa0"]),
        (column("date"), [b"2024-02-29", None, b"0001-01-01"], [date(2024, 2, 29), None, date(1, 1, 1)]),
        (column("timestamptz"), [b"2024-02-29 23:59:59.5+00"], [datetime(2024, 2, 29, 23, 59, 59, 500_000, UTC)]),
        (column("time"), [b"24:00:00"], ["24:00:00"]),
        (column("jsonb"), [b"null", None], ["null", None]),
        (column("int4[]"), [b"{1,NULL}"], ["{1,NULL}"]),
    ],
    ids=lambda value: str(value.type.name) if isinstance(value, Column) else "",
)
def test_values(of: Column, texts: list[bytes | None], values: list[Any]) -> None:
    assert decoded(of, *texts) == values
    assert decode(of, pa.array(texts, pa.large_binary())).type == arrow_type(of)


def test_nan_and_the_sign_of_zero_survive() -> None:
    nan, zero = decoded(column("float4"), b"NaN", b"-0")

    assert math.isnan(nan)
    assert math.copysign(1, zero) == -1


@pytest.mark.parametrize(
    ("type_name", "text", "days"),
    [
        ("date", b"4714-11-24 BC", -2_440_588),
        ("date", b"5874897-12-31", 2_145_042_905),
        ("date", b"0001-12-31 BC", -719_163),
        ("date", b"10000-01-01", 2_932_897),
    ],
)
def test_dates_of_any_year(type_name: str, text: bytes, days: int) -> None:
    ordinary = b"1970-01-02"
    assert decode(column(type_name), pa.array([ordinary, text, None])).view(pa.int32()).to_pylist() == [1, days, None]


def test_timestamps_of_any_year() -> None:
    texts = [b"0044-03-15 12:00:00.25 BC", b"99999-12-31 23:59:59.999999"]
    numbers = decode(column("timestamp"), pa.array(texts)).view(pa.int64()).to_pylist()

    assert [number % 86_400_000_000 for number in numbers] == [43_200_250_000, 86_399_999_999]
    assert [number // 86_400_000_000 for number in numbers] == [-735_160, 35_804_721]


@given(st.lists(st.datetimes()))
def test_every_moment_of_four_digit_years(moments: list[datetime]) -> None:
    texts = [moment.isoformat(" ").encode() for moment in moments]
    numbers = decode(column("timestamp"), pa.array(texts, pa.binary())).view(pa.int64()).to_pylist()

    assert [timedelta(microseconds=number) for number in numbers] == [moment - EPOCH for moment in moments]


@given(st.lists(st.none() | st.binary()), st.integers(0, 5))
def test_bytes_and_slices_of_them(values: list[bytes | None], start: int) -> None:
    texts = [None if value is None else b"\\x" + value.hex().encode() for value in values]

    assert decode(column("bytea"), pa.array(texts, pa.binary())[start:]).to_pylist() == values[start:]


@pytest.mark.parametrize(
    ("of", "text"),
    [
        (column("date"), b"infinity"),
        (column("timestamp"), b"-infinity"),
        (column("timestamp"), b"294276-12-31 23:59:59"),
        (numeric(5, 2), b"NaN"),
    ],
)
def test_what_arrow_cannot_hold_is_an_error_that_names_it(of: Column, text: bytes) -> None:
    with raises(ErrorKind.VALUE, match=f"Column c .* holds {text.decode()}"):
        decoded(of, None, text)


def test_a_domain_is_its_base_and_an_enum_is_text() -> None:
    number = PgType(23, "int4")
    domain = Column("c", PgType(20_000, "shop.amount", "domain", number), "shop.amount")
    named_alike = Column("c", PgType(20_001, "bool", "enum", labels=("t",)), "bool")

    assert decoded(domain, b"7") == [7]
    assert decoded(named_alike, b"t") == ["t"]


def test_a_domain_has_the_precision_of_its_base() -> None:
    price = PgType(20_000, "shop.price", "domain", PgType(1700, "numeric", sql_type="numeric(20,4)"))
    assert decoded(Column("c", price, "shop.price"), b"1.5") == [Decimal("1.5000")]
    nested = PgType(20_001, "shop.list_price", "domain", price)
    assert decoded(Column("c", nested, "shop.list_price"), b"1.5") == [Decimal("1.5000")]
