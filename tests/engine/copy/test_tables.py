"""What is complete, how far it has come, and in which order ranges are begun."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.copy.ranges import RangeOutcome, RangeTask
from airflow_provider_pgetl.engine.copy.tables import TableCopy, largest_first
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.source.reading import Range


def copy_of(name: str, *sizes: int) -> TableCopy:
    table = TableName("public", name)
    schema = TableSchema(table, 1, (), ())
    target = Target("shop", schema, 1)
    ranges = [Range(number, table, 1, 1, 0, None, size) for number, size in enumerate(sizes)]
    return TableCopy(table, target, 7, [RangeTask(schema, None, one, target) for one in ranges])


def test_a_table_is_complete_with_its_last_range() -> None:
    copy = copy_of("t", 10, 20)
    copy.stored(RangeOutcome(copy.table, 1, rows=2))
    assert not copy.complete
    assert (copy.progress.bytes_done, copy.progress.bytes_total, copy.progress.rows) == (20, 30, 2)

    copy.stored(RangeOutcome(copy.table, 0, rows=1))
    assert copy.complete
    assert (copy.progress.bytes_done, copy.progress.rows, copy.progress.attempt) == (30, 3, 7)


def test_a_table_is_rewritten_if_any_range_found_that() -> None:
    copy = copy_of("t", 10, 20)
    copy.stored(RangeOutcome(copy.table, 1, rewritten=True))
    copy.stored(RangeOutcome(copy.table, 0, rows=1))
    assert (copy.complete, copy.rewritten, copy.rows) == (True, True, 1)


def test_a_range_counts_once() -> None:
    copy = copy_of("t", 10, 20)
    for _ in range(2):
        copy.stored(RangeOutcome(copy.table, 0, rows=5))

    assert (copy.rows, copy.complete) == (5, False)


def test_a_table_without_ranges_is_complete() -> None:
    assert copy_of("t").complete


def test_large_ranges_first_and_those_of_one_table_together() -> None:
    order = largest_first([copy_of("small", 3), copy_of("b", 9, 9), copy_of("a", 9, 9, 4)])

    assert [(one.table.name, one.number) for one in order] == [
        *(("a", 0), ("a", 1), ("b", 0), ("b", 1)),
        *(("a", 2), ("small", 0)),
    ]


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=4))
def test_no_range_is_lost(tables: Sequence[Sequence[int]]) -> None:
    copies = [copy_of(str(number), *sizes) for number, sizes in enumerate(tables)]
    order = [(one.table, one.number) for one in largest_first(copies)]

    assert sorted(order) == sorted((copy.table, task.number) for copy in copies for task in copy.tasks)
