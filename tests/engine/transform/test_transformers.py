"""What transformers promise: type, length, NULL, the same output for the same input, and uniqueness."""

import hmac
import ipaddress
import json
import re
import uuid
from datetime import date, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.changes.values import decode
from airflow_provider_pgetl.engine.config.families import longest
from airflow_provider_pgetl.engine.config.transformers import (
    Address,
    Boolean,
    Choice,
    Company,
    Constant,
    Custom,
    Date,
    Email,
    Encrypt,
    FirstName,
    Float,
    FullName,
    Hash,
    Hstore,
    Integer,
    Ip,
    Json,
    LastName,
    Mask,
    Null,
    Phone,
    String,
    Template,
    Timestamp,
    Transformer,
    Uuid,
)
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.transform import invented
from airflow_provider_pgetl.engine.transform.keyed import Key
from airflow_provider_pgetl.engine.transform.texts import decrypted
from tests.engine.transform.columns import KEY, column, one, texts, transform

OTHER_KEY = Key("another key, which is as long")

words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
moments = st.datetimes().map(lambda moment: moment.isoformat(" "))
VALUES = {
    "text": words,
    "varchar(20)": words,
    "varchar(64)": words,
    "char(8)": words.map(lambda text: text[:8].rstrip(" ").ljust(8)),
    "bytea": st.binary(max_size=40).map(lambda data: f"\\x{data.hex()}"),
    "smallint": st.integers(-(2**15), 2**15 - 1).map(str),
    "integer": st.integers(-(2**31), 2**31 - 1).map(str),
    "bigint": st.integers(-(2**63), 2**63 - 1).map(str),
    "real": st.sampled_from(["1.5", "-0", "NaN", "Infinity", "3.4e+38"]),
    "double precision": st.floats().map(repr) | st.sampled_from(["NaN", "-Infinity"]),
    "numeric(10,2)": st.decimals("-99999999.99", "99999999.99", places=2).map(str),
    "numeric": st.decimals(-(10**30), 10**30, allow_nan=False).map("{:f}".format),
    "date": st.dates().map(str) | st.just("infinity"),
    "timestamp": moments | st.just("-infinity"),
    "timestamptz": moments.map("{}+00".format),
    "uuid": st.uuids().map(str),
    "inet": st.ip_addresses().map(str),
    "jsonb": st.builds(lambda text: json.dumps({"a": [text, None], "b": {"c": text}}, ensure_ascii=False), words),
    "hstore": st.sampled_from(['"a"=>"1", "b"=>NULL', "", '"a\\"b"=>"x\\\\y"']),
}
OF_TEXTS: list[Transformer] = [
    Constant("constant"),
    Hash(),
    Hash(length=12, encoding="base64"),
    *(Mask(kind) for kind in ("default", "password", "name", "address", "email", "mobile")),
    *(Mask(kind) for kind in ("telephone", "id", "credit_card", "url")),
    Mask("pattern", r"\d+"),
    Phone(),
    Phone(keep=3),
    FirstName(),
    LastName("de_DE"),
    FullName("fr_FR"),
    Company(),
    *(Address(part=part) for part in ("full", "street", "postcode", "city", "country")),
    Choice(("a", "b", "c")),
    String(),
    String(length=40, alphabet="xyz"),
]
CASES: list[tuple[str, Transformer]] = [
    *(("text", given) for given in OF_TEXTS),
    *(("varchar(20)", given) for given in OF_TEXTS[::2]),
    *(("char(8)", given) for given in OF_TEXTS[1::2]),
    ("text", Email()),
    ("varchar(64)", Email()),
    ("varchar(20)", Email()),
    ("varchar(64)", Email(keep_domain=True)),
    ("text", Uuid()),
    ("text", Encrypt()),
    ("bytea", Encrypt()),
    ("bytea", Hash(length=8)),
    ("uuid", Uuid()),
    ("inet", Ip(16, 32)),
    *((kind, Integer()) for kind in ("smallint", "integer", "bigint")),
    *((kind, Integer(noise=500)) for kind in ("smallint", "integer", "bigint")),
    *((kind, Integer(bucket=7)) for kind in ("smallint", "integer", "bigint")),
    ("smallint", Integer(minimum=18, maximum=99)),
    ("bigint", Integer(minimum=-(2**63), maximum=2**63 - 1)),
    *((kind, Float(noise=3.5)) for kind in ("real", "double precision", "numeric(10,2)", "numeric")),
    *((kind, Float(minimum=0, maximum=1)) for kind in ("real", "double precision", "numeric(10,2)", "numeric")),
    *((kind, Float(bucket=0.25)) for kind in ("real", "double precision", "numeric(10,2)")),
    *(("date", Date(truncate=unit)) for unit in ("week", "month", "quarter", "year")),  # type: ignore[arg-type]
    ("date", Date(shift_days=30)),
    ("date", Date(earliest="1980-01-01", latest="1989-12-31")),
    *((kind, Timestamp(shift_days=30)) for kind in ("timestamp", "timestamptz")),
    *((kind, Timestamp(truncate="hour")) for kind in ("timestamp", "timestamptz")),
    *((kind, Timestamp(earliest="1980-01-01", latest="1989-12-31")) for kind in ("timestamp", "timestamptz")),
    ("jsonb", Json({"a[*]": Email(), "b.c": "hash"})),
    ("hstore", Hstore({"a": Mask(), "b": "email"})),
]
every_case = pytest.mark.parametrize(("sql_type", "given_"), CASES, ids=lambda one: getattr(one, "use", str(one)))


@every_case
@settings(max_examples=7, deadline=None)
@given(data=st.data())
def test_what_every_transformer_promises(sql_type: str, given_: Transformer, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | VALUES[sql_type], max_size=8))
    made = transform(sql_type, given_, values)
    assert given_.misfit(column(sql_type)) is None
    expect_type(sql_type, given_, values, made)
    # The same for equal values, whatever is beside them.
    alone = [transform(sql_type, given_, [value])[0] for value in values]
    assert transform(sql_type, given_, [*values, *values[::-1]]) == [*alone, *alone[::-1]]
    assert alone == made
    if given_.keeps_unique(column(sql_type)):
        assert len({*made} - {None}) == len({*values} - {None})


def expect_type(sql_type: str, given_: Transformer, values: list[str | None], made: list[str | None]) -> None:
    """Each output is a value of the type, no longer than it allows, and NULL where the input is."""
    limit = longest(column(sql_type))
    decode(column(sql_type), texts([value for value in made if value not in ("infinity", "-infinity")]))
    for value, text in zip(values, made, strict=True):
        assert (text is None) == (value is None) or isinstance(given_, Constant)
        assert limit is None or text is None or len(text) <= limit


@pytest.mark.parametrize(
    ("sql_type", "given_", "value"),
    [
        ("text", Hash(), "x"),
        ("text", Email(), "x@y.org"),
        ("text", Uuid(), "x"),
        ("text", Encrypt(), "x"),
        ("text", String(length=30), "x"),
        ("text", Phone(), "0123456789012345"),
        ("text", Address(), "x"),
        ("uuid", Uuid(), str(uuid.UUID(int=7))),
        ("bigint", Integer(), "7"),
        ("bigint", Integer(minimum=0, maximum=10**12), "7"),
        ("double precision", Float(noise=1), "7"),
        ("jsonb", Json({"a": Hash()}), '{"a": "x"}'),
    ],
)
def test_another_key_has_another_output(sql_type: str, given_: Transformer, value: str) -> None:
    assert transform(sql_type, given_, [value]) != transform(sql_type, given_, [value], key=OTHER_KEY)
    assert given_.is_keyed


def test_outputs_do_not_change_from_release_to_release() -> None:
    """They are in destinations: whoever changes one of these has all tables copied anew."""
    assert one("text", Hash(length=16), "Ada") == "c302ac63d2cc4d17"
    assert one("text", Email(), "ada@example.org") == "3273741bc5ff7c4afa81@example.com"
    assert one("bigint", Integer(), "1") == "3789817276152697588"
    assert one("smallint", Integer(), "1") == "15973"
    assert one("uuid", Uuid(), str(uuid.UUID(int=1))) == "32365fc9-c3b3-4711-8ade-738209362bdf"
    assert one("text", Phone(keep=2), "+49 30 1234") == "+49 69 5019"
    assert one("date", Date(shift_days=100), "1999-12-31") == "2000-02-09"
    assert one("text", Encrypt(), "Ada") == "IXcM/cX40qH4+DjDj5WSiiZlmw=="


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_a_keyed_hash_is_that_of_the_standard(values: list[bytes]) -> None:
    made = KEY.digests(pa.array(values, pa.large_binary()), "hash")
    assert [one.tobytes() for one in made] == [hmac.digest(KEY.derived("hash"), one, "sha256") for one in values]


# -- each one ---------------------------------------------------------------------------------------------------------


def test_an_integer_is_permuted_within_its_sign_and_type() -> None:
    every = [str(number) for number in range(-(2**15), 2**15)]
    made = transform("smallint", Integer(), every)
    assert sorted(map(int, filter(None, made))) == list(range(-(2**15), 2**15))
    assert all((int(a) < 0) == (int(b or 0) < 0) for a, b in zip(every, made, strict=True))
    assert sum(a == b for a, b in zip(every, made, strict=True)) < 20


def test_noise_stays_in_its_range_and_in_the_type() -> None:
    values = [*map(str, range(100)), "32767", "-32768"]
    made = [int(text or 0) for text in transform("smallint", Integer(noise=3), values)]
    moved = {b - int(a) for a, b in zip(values, made, strict=True)}
    assert moved == {-3, -2, -1, 0, 1, 2, 3}
    assert all(-32768 <= number <= 32767 for number in made)


def test_noise_stays_in_a_numeric() -> None:
    made = transform("numeric(10,2)", Float(noise=10**9), [str(one) for one in range(40)])
    assert {"99999999.99", "-99999999.99"} <= {*made}


def test_buckets() -> None:
    assert transform("integer", Integer(bucket=10), ["19", "20", "-1", None]) == ["10", "20", "-10", None]
    assert one("smallint", Integer(bucket=10), "-32768") == "-32760"
    assert one("numeric(10,2)", Float(bucket=0.5), "1.99") == "1.50"


def test_a_range_is_used_as_a_whole() -> None:
    made = transform("integer", Integer(minimum=5, maximum=8), [str(one) for one in range(200)])
    assert {*made} == {"5", "6", "7", "8"}


@pytest.mark.parametrize(
    ("kind", "value", "shown"),
    [
        ("default", "Ada Löve", "********"),
        ("password", "x", "************"),
        ("name", "Ada de Löve", "A*** d*** L***"),
        ("address", "12 Long Street", "12 Lon********"),
        ("address", "12 St", "*****"),
        ("email", "ada@example.org", "a***@example.org"),
        ("email", "ada or bob@example.org", "a***@example.org"),
        ("email", "no address", "**********"),
        ("mobile", "+491701234567", "+491******567"),
        ("telephone", "030 1234567", "*******4567"),
        ("id", "AB123456", "****3456"),
        ("id", "A123", "****"),
        ("credit_card", "4111111111111111", "411111******1111"),
        ("credit_card", "41111111", "********"),
        ("url", "https://ada:secret@example.org/a?b#c", "https://example.org/***"),
        ("url", "https://example.org", "https://example.org/***"),
        ("url", "mailto", "******"),
    ],
)
def test_masks(kind: str, value: str, shown: str) -> None:
    assert one("text", Mask(kind), value) == shown  # type: ignore[arg-type]


def test_a_pattern_hides_what_it_matches_and_all_of_a_value_that_it_does_not_match() -> None:
    assert one("text", Mask("pattern", r"\d{4,}"), "card 12345 of 12") == "card *** of 12"
    assert one("text", Mask("pattern", r"\d{4,}"), "ada") == "***"


def test_a_domain_is_kept_and_fits() -> None:
    assert re.fullmatch(r"[0-9a-f]{20}@ada\.org", one("text", Email(keep_domain=True), "x@ada.org") or "")
    assert (one("text", Email(keep_domain=True), "no domain") or "").endswith("@example.com")
    assert (one("varchar(20)", Email(keep_domain=True), "x@ada.org") or "").endswith("@ada.org")


def test_a_phone_number_keeps_its_form_and_nothing_else_passes() -> None:
    made = one("text", Phone(keep=2), "+49 (30) 12-34 Ada") or ""
    assert re.fullmatch(r"\+49 \(\d\d\) \d\d-\d\d \d\d\d", made)
    assert made != "+49 (30) 12-34 "


def test_names_come_from_the_language() -> None:
    names = {*invented.pool("de_DE", "first_name").to_pylist()}
    assert {*transform("text", FirstName("de_DE"), [str(one) for one in range(50)])} <= names
    first, _, last = (one("text", FullName("de_DE"), "x") or "").partition(" ")
    assert first in names
    assert last in {*invented.pool("de_DE", "last_name").to_pylist()}


def test_a_language_that_the_library_does_not_have() -> None:
    with pytest.raises(PgetlError, match='no locale "xx_XX"'):
        transform("text", FirstName("xx_XX"), ["x"])


def test_a_shift_keeps_the_distances_of_one_person_and_leaves_no_date() -> None:
    days = [date(2020, 1, 1) + timedelta(days=day) for day in range(60)]
    made = transform("date", Date(shift_days=9, by="id"), [*map(str, days)], id=["7"] * 60)
    shifts = {date.fromisoformat(text or "") - day for text, day in zip(made, days, strict=True)}
    assert len(shifts) == 1
    assert 1 <= abs(shifts.pop().days) <= 9
    alone = transform("date", Date(shift_days=2), [*map(str, days)])
    assert {(date.fromisoformat(b or "") - a).days for a, b in zip(days, alone, strict=True)} == {-2, -1, 1, 2}


@pytest.mark.parametrize(
    ("unit", "begin"),
    [
        ("minute", "2024-05-15 13:45:00+00"),
        ("hour", "2024-05-15 13:00:00+00"),
        ("day", "2024-05-15 00:00:00+00"),
        ("week", "2024-05-13 00:00:00+00"),
        ("month", "2024-05-01 00:00:00+00"),
        ("quarter", "2024-04-01 00:00:00+00"),
        ("year", "2024-01-01 00:00:00+00"),
    ],
)
def test_truncation(unit: str, begin: str) -> None:
    assert one("timestamptz", Timestamp(truncate=unit), "2024-05-15 13:45:59.123+00") == begin  # type: ignore[arg-type]


def test_moments_of_all_years() -> None:
    assert one("date", Date(truncate="year"), "0044-03-15 BC") == "0044-01-01 BC"
    assert one("timestamp", Timestamp(truncate="hour"), "20000-01-01 12:34:56.7") == "20000-01-01 12:00:00"
    assert one("timestamp", Timestamp(shift_days=1), "9999-12-31 23:59:59.5") in (
        "9999-12-30 23:59:59.5",
        "10000-01-01 23:59:59.5",
    )
    assert one("date", Date(truncate="year"), "-infinity") == "-infinity"


def test_a_boolean_is_decided_by_another_column() -> None:
    ids = [str(one) for one in range(1000)]
    made = transform("boolean", Boolean("id", 0.2), ["t"] * 999 + [None], id=ids)
    assert made[-1] is None
    assert 120 < made.count("t") < 280
    assert made[:10] == transform("boolean", Boolean("id", 0.2), ["f"] * 10, id=ids[:10])


def test_json_keeps_what_no_path_leads_to() -> None:
    document = '{"n": 1.50, "big": 12345678901234567890, "e": 1e3, "a": {"b": ["x", null, 7]}, "ü": "\\u0000"}'
    made = one("json", Json({"a.b[*]": Mask("password"), "no.such": "hash"}), document)
    expected = document.replace('"x"', '"************"').replace("7]", '"************"]')
    assert made == expected


def test_json_that_is_another_document() -> None:
    assert transform("jsonb", Json({"a": Hash()}), ["null", "{}"]) == ["null", "{}"]
    assert transform("jsonb", Json({"a[*].b": Hash()}), ['{"a": null}', '{"a": []}']) == ['{"a": null}', '{"a": []}']
    for path, document in (
        ("a.b", '{"a": [{"b": "canary"}]}'),
        ("a", '[{"a": "canary"}]'),
        ("a", '"canary"'),
        ("a[*]", '{"a": "canary"}'),
        ("a[*]", '{"a": {"x": "canary"}}'),
        ("a[*].b", '{"a": {"b": "canary"}}'),
        ("a.b", '{"a": "canary"}'),
    ):
        with pytest.raises(PgetlError) as raised:
            one("jsonb", Json({path: Hash()}), document)
        assert "canary" not in str(raised.value)
    with pytest.raises(PgetlError) as raised:
        one("jsonb", Json({"a": Hash()}), '{"a": {"canary": 1}}')
    assert "canary" not in str(raised.value)


def test_hstore() -> None:
    made = one("hstore", Hstore({"a": Mask(), 'b"': Constant("x")}), '"a"=>"12", "b\\""=>"y, \\"z\\"", "c"=>NULL')
    assert made == '"a"=>"**", "b\\""=>"x", "c"=>NULL'


def test_networks() -> None:
    assert one("inet", Ip(), "192.168.17.5") == "192.168.17.0"
    assert one("inet", Ip(v4=16), "192.168.17.5/24") == "192.168.0.0/24"
    assert one("text", Ip(), "2001:db8:1:2::5") == str(ipaddress.ip_address("2001:db8:1::"))


@pytest.mark.parametrize(("sql_type", "value"), [("text", "Ada Löve"), ("bytea", "\\xdeadbeef"), ("text", "")])
def test_what_is_encrypted_can_be_decrypted(sql_type: str, value: str) -> None:
    made = one(sql_type, Encrypt(), value) or ""
    assert decrypted(made, KEY) == value
    for text, key in ((made, OTHER_KEY), ("nothing", KEY), ("\\xnothing", KEY), (made[:-4], KEY)):
        with pytest.raises(ValueError, match="it was not encrypted with this key"):
            decrypted(text, key)


def test_a_template_sees_the_row() -> None:
    made = transform(
        "varchar(20)", Template("{{ first }} {{ id | hash }}"), [None, "x"], first=["Ada", None], id=["1", "2"]
    )
    assert made == [f"Ada {one('text', Hash(), '1')}"[:20], f"None {one('text', Hash(), '2')}"[:20]]


def test_a_template_cannot_leave_its_sandbox() -> None:
    with pytest.raises(PgetlError, match="SecurityError"):
        transform("text", Template("{{ id.__class__.__mro__ }}"), ["x"], id=["1"])


def test_null_and_constant() -> None:
    assert transform("integer", Null(), ["1", None]) == [None, None]
    assert transform("integer", Constant(7), ["1", None]) == ["7", "7"]  # type: ignore[arg-type]
    assert Constant(True).value == "t"  # type: ignore[arg-type]


# -- one's own --------------------------------------------------------------------------------------------------------


class Reversed:
    unique = True

    def __init__(self, suffix: str = "") -> None:
        self.suffix = suffix

    def transform_value(self, text: str, key: bytes) -> str:
        assert len(key) == 32
        if text == "canary":
            raise ValueError(f"cannot reverse {text}")
        return text[::-1] + self.suffix


class Losing:
    def transform(self, values: pa.Array, key: bytes) -> pa.Array:
        return pa.nulls(len(values), pa.string())


def test_a_class_of_ones_own() -> None:
    given = Custom(f"{__name__}:Reversed", {"suffix": "!"})
    assert transform("varchar(20)", given, ["ada", None]) == ["ada!", None]
    assert given.keeps_unique(column("text"))


def test_what_a_class_does_not_return_is_no_null() -> None:
    with pytest.raises(PgetlError, match="could not be transformed"):
        transform("text", Custom(f"{__name__}:Losing"), ["ada"])


# -- failing closed ---------------------------------------------------------------------------------------------------


def test_an_error_names_the_column_and_never_the_value(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(PgetlError) as raised:
        transform("text", Custom(f"{__name__}:Reversed"), ["ada", "canary"])
    error = raised.value
    assert error.kind is ErrorKind.TRANSFORM
    assert error.table == "public.t"
    assert "Column c of public.t" in error.message
    assert "ValueError at test_transformers.py, line" in error.message
    assert "canary" not in str(error) + caplog.text
    assert error.__cause__ is None
    assert error.__context__ is None


def test_null_is_written_only_where_that_is_said() -> None:
    made = transform("text", Custom(f"{__name__}:Reversed"), ["ada", "canary", None], null_on_error=True)
    assert made == ["ada", None, None]
