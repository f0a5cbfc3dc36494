"""Tables and patterns as people write them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import (
    AlterationPolicy,
    CopiedSelection,
    Pattern,
    TableName,
    parse_table,
    written,
)
from tests.raising import raises

names = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1, max_size=20)
tables = st.builds(TableName, names, names)


@given(tables)
def test_what_is_written_reads_back(table: TableName) -> None:
    assert parse_table(written(table)) == table


@given(tables, tables)
def test_a_name_matches_itself_alone(table: TableName, other: TableName) -> None:
    pattern = Pattern.parse(written(table))
    assert pattern.matches(table)
    assert pattern.matches(other) == (other == table)


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("public.orders", "public", "orders"),
        ("Shop.Orders", "Shop", "Orders"),
        ('public."Weird ""Name"', "public", 'Weird "Name'),
        ('"a.b"."c*d"', "a.b", "c*d"),
        ("public.v1.2", "public", "v1.2"),
        ("public.über straße", "public", "über straße"),
    ],
)
def test_names(text: str, schema: str, name: str) -> None:
    assert parse_table(text) == TableName(schema, name)


@pytest.mark.parametrize(
    ("pattern", "matched", "others"),
    [
        ("inventory.*", ["inventory.items", "inventory.a.b"], ["inventory2.items", "x.inventory"]),
        ("*.log_*", ["a.log_", "b.log_x"], ["a.log", "a.xlog_x"]),
        ("public.a*z", ["public.az", "public.abcz"], ["public.abc", "public.zaz"]),
        ('public."*"', ["public.*"], ["public.a"]),
        ("public.a+", ["public.a+"], ["public.aa"]),
    ],
)
def test_a_star_stays_within_its_segment(pattern: str, matched: list[str], others: list[str]) -> None:
    parsed = Pattern.parse(pattern)
    assert all(parsed.matches(TableName(*name.split(".", 1))) for name in matched)
    assert not any(parsed.matches(TableName(*name.split(".", 1))) for name in others)


@pytest.mark.parametrize(
    "text", ["", "orders", ".orders", "public.", '"public.orders', 'public."a"b"', 'public."a"b', '"".a']
)
def test_what_names_no_table_is_refused_with_advice(text: str) -> None:
    with raises(ErrorKind.CONFIG, match="names no table") as caught:
        Pattern.parse(text)
    assert "schema" in caught.value.remedy


def test_a_forgotten_schema_is_offered() -> None:
    with pytest.raises(PgetlError, match=r"public\.orders"):
        parse_table("orders")


def test_a_pattern_is_not_one_table() -> None:
    with pytest.raises(PgetlError, match="several"):
        parse_table("public.*")


WHOLE = CopiedSelection(None, None, False, TableName("public", "orders"))
SOME = CopiedSelection(frozenset({"id", "note"}), "(id > 7)", True, TableName("archive", "orders"))
UPSERTED = replace(WHOLE, form={"mode": "upsert", "numeric": "text"})


def test_differences_are_named_as_they_are_declared() -> None:
    assert WHOLE.differences(WHOLE) == ()
    assert WHOLE.differences(SOME) == ("columns", "where", "insert_only", "destination")
    assert SOME.differences(replace(SOME, where=None)) == ("where",)


def test_what_is_done_about_alterations_asks_for_no_other_rows() -> None:
    declared = replace(SOME, policy=AlterationPolicy("on_incompatible_change"))
    assert SOME.differences(declared) == ()
    assert CopiedSelection.from_json(declared.as_json()) == declared
    before = {key: value for key, value in declared.as_json().items() if key != "policy"}
    assert CopiedSelection.from_json(before) == SOME, "as an earlier version has stored it"


def test_a_list_of_all_columns_is_another_thing_than_none() -> None:
    """New columns of the source belong to the one and not to the other."""
    assert WHOLE.differences(replace(WHOLE, columns=frozenset({"id", "note"}))) == ("columns",)


def test_what_the_destination_makes_of_it_differs_by_its_own_keys() -> None:
    assert UPSERTED.differences(replace(UPSERTED, form={"mode": "history", "numeric": "text"})) == ("mode",)
    assert UPSERTED.differences(WHOLE) == WHOLE.differences(UPSERTED) == (), "of another kind of destination"


def test_terms_survive_json() -> None:
    assert [CopiedSelection.from_json(selection.as_json()) for selection in (WHOLE, SOME, UPSERTED)] == [
        WHOLE,
        SOME,
        UPSERTED,
    ]
