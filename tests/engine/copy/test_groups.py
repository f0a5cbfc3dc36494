"""Which tables share a snapshot."""

from __future__ import annotations

import random
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.copy.admission import form_groups
from airflow_provider_pgetl.engine.model.tables import TableName

LIMIT = 100
sizes_of_tables = st.dictionaries(
    st.builds(TableName, st.sampled_from(["a", "b"]), st.text(max_size=3)), st.integers(0, 3 * LIMIT), max_size=30
)


def names(**sizes: int) -> dict[TableName, int]:
    return {TableName("public", name): size for name, size in sizes.items()}


def test_a_big_table_is_alone_and_small_ones_share() -> None:
    groups = form_groups(names(big=500, small=30, tiny=1, half=60), LIMIT)

    assert [[table.name for table in group] for group in groups] == [["big"], ["half", "small", "tiny"]]


def test_no_tables_no_groups() -> None:
    assert form_groups({}, LIMIT) == []


@given(sizes_of_tables)
def test_every_table_is_in_exactly_one_group(sizes: Mapping[TableName, int]) -> None:
    grouped = [table for group in form_groups(sizes, LIMIT) for table in group]

    assert sorted(grouped) == sorted(sizes)


@given(sizes_of_tables)
def test_only_single_tables_exceed_the_limit(sizes: Mapping[TableName, int]) -> None:
    for group in form_groups(sizes, LIMIT):
        assert len(group) == 1 or sum(sizes[table] for table in group) <= LIMIT


@given(sizes_of_tables)
def test_no_two_groups_fit_into_one(sizes: Mapping[TableName, int]) -> None:
    filled = sorted(sum(sizes[table] for table in group) for group in form_groups(sizes, LIMIT))

    assert len(filled) < 2 or filled[0] + filled[1] > LIMIT


@given(sizes_of_tables, st.randoms(use_true_random=False))
def test_the_order_of_declaration_does_not_matter(sizes: Mapping[TableName, int], shuffler: random.Random) -> None:
    shuffled = list(sizes.items())
    shuffler.shuffle(shuffled)

    assert form_groups(dict(shuffled), LIMIT) == form_groups(sizes, LIMIT)
