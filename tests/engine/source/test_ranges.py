"""Cutting tables into ranges."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.source.leaves import Leaf
from airflow_provider_pgetl.engine.source.ranges import Range, plan_ranges, range_query
from airflow_provider_pgetl.engine.tables import Column, PgType, TableName, TableSchema

INTEGER = PgType(23, "integer")
SECRETIVE = PgType(1033, "aclitem", sendable=False)
ORDERS = TableName("public", 'Weird "Name"')
SCHEMA = TableSchema(ORDERS, 1, (Column("Id", INTEGER, "integer"), Column("who", SECRETIVE, "aclitem")), ("Id",))

leaf_sizes = st.tuples(st.integers(0, 5000), st.integers(0, 1 << 20))


def leaf(number: int, blocks: int, toast: int = 0) -> Leaf:
    return Leaf(TableName("public", f"leaf{number:02}"), number, 1000 + number, blocks, blocks * 8192 + toast)


@given(st.lists(leaf_sizes, max_size=6), st.integers(8192, 1 << 24))
def test_every_block_is_in_exactly_one_range(sizes: list[tuple[int, int]], range_bytes: int) -> None:
    leaves = [leaf(number, blocks, toast) for number, (blocks, toast) in enumerate(sizes)]
    ranges = plan_ranges(leaves, range_bytes)
    for one in leaves:
        mine = [r for r in ranges if r.relation == one.name]
        assert mine[0].first_block == 0
        assert mine[-1].last_block is None
        for before, after in pairwise(mine):
            assert before.last_block is not None
            assert before.first_block <= before.last_block == after.first_block - 1
        assert {r.filenode for r in mine} == {one.filenode}
    assert [r.number for r in ranges] == list(range(len(ranges)))


@given(st.integers(1, 50_000), st.integers(0, 1 << 30), st.integers(1 << 16, 1 << 26))
def test_ranges_are_about_as_large_as_wanted(blocks: int, toast: int, range_bytes: int) -> None:
    one = leaf(1, blocks, toast)
    ranges = plan_ranges([one], range_bytes)
    per_block = one.size / blocks
    for r in ranges[:-1]:
        assert r.last_block is not None
        size = (r.last_block + 1 - r.first_block) * per_block
        assert size <= 2 * range_bytes + per_block


def test_the_largest_leaf_comes_first_and_an_empty_one_has_its_range() -> None:
    ranges = plan_ranges([leaf(1, 0), leaf(2, 10), leaf(3, 100)], 1 << 30)
    assert [r.relation.name for r in ranges] == ["leaf03", "leaf02", "leaf01"]


def test_toast_counts() -> None:
    assert len(plan_ranges([leaf(1, 100, toast=100 << 20)], 10 << 20)) == 10


def test_the_query_bounds_the_blocks_and_filters_the_rows() -> None:
    query = range_query(SCHEMA, Range(0, ORDERS, 1, 1, 5, 9), "text", row_filter="(region = 'eu'::text)")
    assert query == (
        'COPY (SELECT "Id", "who" FROM ONLY "public"."Weird ""Name""" '
        "WHERE ctid >= '(5,0)'::pg_catalog.tid AND ctid < '(10,0)'::pg_catalog.tid AND ((region = 'eu'::text))) "
        "TO STDOUT (FORMAT text)"
    )


def test_the_last_range_is_open() -> None:
    assert "ctid <" not in range_query(SCHEMA, Range(0, ORDERS, 1, 1, 5, None), "csv")


def test_in_binary_what_has_no_binary_form_goes_as_text() -> None:
    binary = range_query(SCHEMA, Range(0, ORDERS, 1, 1, 0, None), "binary")
    assert 'SELECT "Id", CASE' in binary
    assert 'pg_catalog.concat("Id")' in range_query(SCHEMA, Range(0, ORDERS, 1, 1, 0, None), "binary", as_text={"Id"})
