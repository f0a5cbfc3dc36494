"""Values of every type arrive the same by both paths: followed in the stream, and copied from a snapshot.

Values are generated; the source itself decides what they are, and both databases' text forms are compared. One table
holds types whose binary form is the same on every server; with the second one, whose types are not, the whole stream
goes in text.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.config.spec import TableSpec
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.in_process import InProcess

pytestmark = pytest.mark.servers

_WORDS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=30)
_AWKWARD = st.sampled_from(["", " ", "\\", "\\N", "\\.", "\t\n\r", "'", '"', "{},()", "null", "NULL", "\u2028", "🐘"])
_TEXT = _WORDS | _AWKWARD
_LETTERS = st.text("abcXYZ019", min_size=1, max_size=8)
_INT4, _INT8 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_FLOAT = st.floats(width=64).map(repr) | st.sampled_from(["NaN", "Infinity", "-Infinity", "-0"])
_NUMERIC = st.decimals(allow_nan=False, allow_infinity=False).map(str) | st.sampled_from(
    ["NaN", "Infinity", "-Infinity", "0.000", "1.0", "1.00", "-0", "1e-30", "9" * 60]
)
_DATE = st.dates().map(str) | st.sampled_from(["infinity", "-infinity", "0044-03-15 BC", "5874897-12-31"])
_STAMP = st.datetimes().map(str) | st.sampled_from(["infinity", "-infinity", "0044-03-15 12:00:00.000001 BC"])
_TIME = st.times().map(str) | st.just("24:00:00")
_INTERVAL = st.builds("{} mons {} days {} us".format, *[st.integers(-1000, 1000)] * 3)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text('ab"\\é☃ ', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('k"\\ ', max_size=3), inner, max_size=3),
    max_leaves=5,
)
_RANGE = st.tuples(st.integers(-99, 99), st.integers(0, 99)).map(lambda r: f"[{r[0]},{r[0] + r[1]})")
_INTS = st.lists(st.none() | _INT4, max_size=4)


def _json_text(value: object) -> str:
    import json

    return json.dumps(value)


def _array(values: list[object]) -> str:
    return "{" + ",".join("NULL" if value is None else str(value) for value in values) + "}"


def _quoted_array(values: list[str]) -> str:
    escaped = ('"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' for value in values)
    return "{" + ",".join(escaped) + "}"


PORTABLE: dict[str, st.SearchStrategy[str]] = {
    "bool": st.sampled_from(["t", "f"]),
    "smallint": st.integers(-(2**15), 2**15 - 1).map(str),
    "integer": _INT4.map(str),
    "bigint": _INT8.map(str),
    "real": st.floats(width=32).map(repr),
    "double precision": _FLOAT,
    "numeric": _NUMERIC,
    "numeric(12,3)": st.decimals(-(10**8), 10**8, places=3).map(str) | st.just("NaN"),
    "text": _TEXT,
    "varchar(40)": _TEXT,
    "char(5)": _LETTERS.map(lambda text: text[:5]),
    '"char"': st.sampled_from("aZ\\"),
    "name": _LETTERS,
    "bytea": st.binary(max_size=40).map(lambda data: "\\x" + data.hex()),
    "date": _DATE,
    "time": _TIME,
    "timetz": _TIME.map(lambda text: text + "+05:30"),
    "timestamp": _STAMP,
    "timestamptz": _STAMP,
    "interval": _INTERVAL,
    "uuid": st.uuids().map(str),
    "json": _JSON.map(_json_text),
    "jsonb": _JSON.map(_json_text),
    "integer[]": _INTS.map(_array),
    "text[]": st.lists(_TEXT, max_size=4).map(_quoted_array),
    "integer[][]": st.sampled_from(["{{1,2},{3,NULL}}", "[2:3]={7,8}", "{}"]),
    "timestamptz[]": st.lists(st.datetimes().map(str), max_size=3).map(_quoted_array),
    "int4range": _RANGE,
    "numrange": _RANGE | st.sampled_from(["empty", "(,)", "[1.5,2.50]"]),
    "int8multirange": st.lists(_RANGE, max_size=3).map(lambda ranges: "{" + ",".join(ranges) + "}"),
    "inet": st.ip_addresses().map(str) | st.just("10.1.2.3/8"),
    "cidr": st.ip_addresses(v=4).map(lambda address: f"{address}/32"),
    "macaddr": st.just("08:00:2b:01:02:03"),
    "bit(4)": st.text("01", min_size=4, max_size=4),
    "varbit": st.text("01", max_size=20),
    "money": st.integers(-(10**9), 10**9).map(lambda cents: f"{cents / 100:.2f}"),
    "point": st.tuples(_INT4, _INT4).map(str),
    "polygon": st.just("((0,0),(1,0.5),(2,-0))"),
    "circle": st.just("<(1.25,-2),3>"),
    "tsvector": st.just("'a':1A 'b':2,3"),
    "tsquery": st.just("'a' & !'b':*"),
    "pg_lsn": st.integers(0, 2**64 - 1).map(lambda lsn: f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"),
    "jsonpath": st.just('$."a"[*]?(@ > 1)'),
    "mood": st.sampled_from(["sad", "very happy", "it's"]),
    "positive": st.integers(1, 2**31 - 1).map(str),
}

LOCAL: dict[str, st.SearchStrategy[str]] = {
    "mood[]": st.lists(st.sampled_from(["sad", "very happy", "it's"]), max_size=3).map(_quoted_array),
    "pair": st.tuples(_INT4, _LETTERS).map(lambda pair: f"({pair[0]},{pair[1]})"),
    "pair[]": st.just('{"(1,a)","(2,\\"b c\\")"}'),
    "positive[]": st.lists(st.integers(1, 9), max_size=3).map(_array),
}

MADE = """
create type mood as enum ('sad', 'very happy', 'it''s');
create domain positive as integer check (value > 0);
create type pair as (a integer, b text);
"""

Values = list[list[str | None]]


def rows_of(types: dict[str, st.SearchStrategy[str]]) -> st.SearchStrategy[Values]:
    row = st.tuples(*(st.none() | strategy for strategy in types.values())).map(list)
    return st.lists(row, min_size=10, max_size=25)


class Both:
    """A table with a column of each type at the source, and the pipeline that replicates it."""

    def __init__(
        self, databases: Databases, types: dict[str, st.SearchStrategy[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.databases = databases
        self.types = list(types)
        columns = ", ".join(f"v{at} {sql_type}" for at, sql_type in enumerate(self.types))
        databases.source.execute(MADE)
        databases.source.execute(f"create table every_type (id int primary key, {columns})")
        self.replica = InProcess(databases, tables=(TableSpec("public.every_type"),))
        for name, value in self.replica.environment.items():
            monkeypatch.setenv(name, value)

    def fill(self, rows: Values) -> None:
        self.databases.source.execute("delete from every_type")
        places = ", ".join(f"%s::text::{sql_type}" for sql_type in self.types)
        with self.databases.source.connect() as connection:
            for number, row in enumerate(rows):
                connection.execute(f"insert into every_type values ({number}, {places})".encode(), row)

    def touch(self) -> None:
        self.databases.source.execute("update every_type set id = -id - 1")

    def expect_equal(self) -> None:
        texts = ", ".join(f"v{at}::text" for at in range(len(self.types)))
        query = f"select id, {texts} from every_type order by id"
        for wanted, found in zip(
            self.databases.source.execute(query), self.databases.destination.execute(query), strict=True
        ):
            for name, one, other in zip(["id", *self.types], wanted, found, strict=True):
                assert one == other, f"{name}: the source has {one!r}, the destination {other!r}"


@pytest.fixture(params=["binary", "text"])
def both(request: pytest.FixtureRequest, databases: Databases, monkeypatch: pytest.MonkeyPatch) -> Both:
    return Both(databases, PORTABLE if request.param == "binary" else PORTABLE | LOCAL, monkeypatch)


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_type_arrives_the_same_by_both_paths(both: Both, data: st.DataObject) -> None:
    strategies = PORTABLE | LOCAL
    rows = data.draw(rows_of({name: strategies[name] for name in both.types}))
    both.replica.catch_up()
    both.fill(rows)
    both.touch()
    both.replica.catch_up()
    both.expect_equal()
    with both.replica.opened() as pipeline:
        pipeline.reset(TableName("public", "every_type"))
    both.replica.catch_up()
    both.expect_equal()


@pytest.mark.parametrize("source_server", [18], indirect=True)
def test_vectors_without_elements_arrive(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their binary form is one that PostgreSQL itself does not read."""
    both = Both(databases, dict.fromkeys(("int2vector", "oidvector"), st.nothing()), monkeypatch)
    both.fill([["", ""], ["1 -2", "1 4294967295"]])
    both.replica.catch_up()
    both.expect_equal()
    both.touch()
    both.replica.catch_up()
    both.expect_equal()
