"""What is found to be another than when a table was copied, and what is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_pgetl.engine.model.tables import Column, GeneratedColumn, Identity, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.source.drift import (
    ColumnForm,
    PublishedDescription,
    Storage,
    described,
    differences,
    redefined,
    redefined_columns,
    rewritten,
    tells_key,
)

INT, NUMERIC = PgType(23, "integer"), PgType(1700, "numeric")
COPIED = TableSchema(
    TableName("public", "t"),
    7,
    (Column("id", INT, "integer", number=1), Column("n", NUMERIC, "numeric(9,2)", 589830, number=3)),
    ("id",),
)
FULL = replace(COPIED, identity="full")
BAG = replace(FULL, key=())
INSERT_ONLY = replace(COPIED, key=())
ID, N = ColumnForm(23, -1, 1), ColumnForm(1700, 589830, 3)


def now(
    identity: Identity = "default", told: str = "id", key: str | None = "id", **columns: ColumnForm
) -> PublishedDescription:
    known = None if key is None else frozenset(key.split())
    return PublishedDescription(columns or {"id": ID, "n": N}, identity, frozenset(told.split()), known)


SAME = {
    "as it was": (COPIED, now()),
    "by RELATION, which has no attribute numbers": (
        COPIED,
        now(key=None, id=ColumnForm(23, -1), n=ColumnForm(1700, 589830)),
    ),
    "full": (FULL, now("full", "id n")),
    "full without a key": (BAG, now("full", "id n", "")),
    "any identity, where only inserts are sent": (INSERT_ONLY, now("index", "n", "n")),
}
DIFFERENT = {
    "n was added": (replace(COPIED, columns=COPIED.columns[:1]), now()),
    "n was dropped": (COPIED, now(id=ID)),
    "n has another type": (COPIED, now(id=ID, n=ColumnForm(701, -1, 3))),
    "n has another length, precision or scale": (COPIED, now(id=ID, n=ColumnForm(1700, 917513, 3))),
    "n was dropped and added again": (COPIED, now(id=ID, n=replace(N, number=4))),
    "their order differs": (COPIED, now(n=N, id=ID)),
    "its replica identity was default and is index": (COPIED, now("index")),
    "its replica identity was default and is full": (COPIED, now("full", "id n")),
    "its replica identity was full and is default": (FULL, now()),
    "its replica identity was (id) and is (n)": (COPIED, now(told="n", key="n")),
    "its replica identity was (id) and is (id, n)": (COPIED, now(told="id n", key="id n")),
    "its primary key was (id) and is ()": (FULL, now("full", "id n", "")),
    "its primary key was () and is (id)": (BAG, now("full", "id n", "id")),
}


@pytest.mark.parametrize(("schema", "found"), SAME.values(), ids=SAME.keys())
def test_the_same(schema: TableSchema, found: PublishedDescription) -> None:
    assert differences(schema, found) == []


@pytest.mark.parametrize(("said", "case"), DIFFERENT.items())
def test_not_the_same(said: str, case: tuple[TableSchema, PublishedDescription]) -> None:
    assert differences(*case) == [said]


@pytest.mark.parametrize("schema", [COPIED, FULL, BAG])
def test_a_schema_is_as_it_is_described(schema: TableSchema) -> None:
    assert differences(schema, described(schema)) == []


@pytest.mark.parametrize(
    ("schema", "identity", "told", "tells"),
    [
        (COPIED, "default", "id", True),
        (COPIED, "index", "id n", True),
        (COPIED, "index", "n", False),
        (COPIED, "full", "id n", True),
        (COPIED, "default", "", True),
        (FULL, "default", "id", True),
        (FULL, "default", "n", False),
        (BAG, "full", "id n", True),
        (BAG, "default", "id", False),
        (BAG, "default", "", True),
        (INSERT_ONLY, "default", "n", True),
    ],
)
def test_a_partition_tells_the_key_of_its_root(schema: TableSchema, identity: Identity, told: str, tells: bool) -> None:
    assert tells_key(identity, told.split(), schema) is tells


@pytest.mark.parametrize(
    ("files", "altered", "found"),
    [
        ({1: 10, 2: 21}, {"id": 5, "n": 7}, True),
        ({1: 10, 2: 21}, {"id": 5, "n": 6}, False),
        ({1: 10, 2: 20}, {"id": 5, "n": 7}, False),
        ({1: 10, 3: 30}, {"id": 5, "n": 7}, False),
        ({1: 11, 2: 20}, {"id": 5, "m": 9}, False),
    ],
    ids=["ALTER TYPE", "TRUNCATE or VACUUM FULL", "SET NOT NULL", "another partition", "another column"],
)
def test_rows_are_rewritten_where_files_and_columns_are_others(
    files: dict[int, int], altered: dict[str, int], found: bool
) -> None:
    assert rewritten(Storage({1: 10, 2: 20}, {"id": 5, "n": 6}), Storage(files, altered)) is found


def test_a_schema_that_does_not_know_its_files_was_never_rewritten() -> None:
    assert not rewritten(Storage({}, {"id": 0}), Storage({1: 10}, {"id": 5}))


@pytest.mark.parametrize(
    ("definition", "found", "said"),
    [
        (9, {"id": 0, "twice": 9}, []),
        (9, {"id": 0, "twice": 11}, ["twice is not computed as it was"]),
        (9, {"id": 0}, ["twice is not computed as it was"]),
        (0, {"id": 0, "twice": 11}, []),
    ],
    ids=["as it was", "another expression", "dropped", "copied when it was not recorded"],
)
def test_columns_that_the_source_computes(definition: int, found: dict[str, int], said: list[str]) -> None:
    twice = GeneratedColumn(Column("twice", INT, "integer", generated=True), "n * 2", definition)
    assert redefined_columns(replace(COPIED, generated=(twice,)), found) == said


MOOD = PgType(20001, "public.mood", "enum", labels=("sad", "glad"), numbers=(11, 12))
PAIR = PgType(20002, "public.pair", "composite", fields=(("a", INT), ("b", MOOD)), numbers=(1, 2))
UNKNOWN = replace(MOOD, numbers=())
RENAMED = "the label sad of the type public.mood was renamed"
OTHERS = "the attributes of the type public.pair are others"


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (MOOD, MOOD, None),
        (MOOD, replace(MOOD, labels=("sad", "so so", "glad"), numbers=(11, 13, 12)), None),
        (MOOD, replace(MOOD, labels=("blue", "glad")), RENAMED),
        (MOOD, replace(MOOD, labels=("glad", "sad")), RENAMED),
        (MOOD, replace(MOOD, labels=("blue", "sad", "glad"), numbers=(11, 13, 12)), RENAMED),
        (UNKNOWN, replace(MOOD, labels=("sad", "glad", "so so"), numbers=(11, 12, 13)), None),
        (UNKNOWN, replace(MOOD, labels=("blue", "glad")), RENAMED),
        (PAIR, PAIR, None),
        (PAIR, replace(PAIR, fields=(("a", INT), ("c", MOOD))), OTHERS),
        (PAIR, replace(PAIR, numbers=(1, 3)), OTHERS),
        (replace(PAIR, numbers=()), PAIR, None),
        (PAIR, replace(PAIR, fields=(("a", INT), ("b", replace(MOOD, labels=("glad", "sad"))))), RENAMED),
    ],
)
def test_types_that_were_altered(before: PgType, now: PgType, said: str | None) -> None:
    """A label that takes the name of another, or an attribute, is known by its number."""
    assert redefined(before, now) == said
    assert redefined(PgType(20003, "public.d", "domain", before), PgType(20003, "public.d", "domain", now)) == said
