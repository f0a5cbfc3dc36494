"""Two bags of rows, compared as two lists would be, whatever parts they come in."""

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.model.verification import Difference
from airflow_provider_pgetl.engine.verify import comparing
from airflow_provider_pgetl.engine.verify.comparing import (
    Digest,
    Selection,
    Side,
    Suspects,
    differences,
    key_hashes,
    sample_of,
    sort_out,
)

Row = tuple[int, str]
rows = st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["a", "b", "c"])), max_size=12)


def table(some: Iterable[Row]) -> pa.Table:
    some = list(some)
    columns = [pa.array([row[0] for row in some], pa.int64()), pa.array([row[1] for row in some], pa.string())]
    return pa.table(columns, names=["id", "note"])


def side(some: list[Row], cut: int, key: tuple[str, ...], selection: Selection = Selection()) -> Side:
    parts = [some[:cut], some[cut:]]
    return Side([lambda part=part: [table(part)] for part in parts], key, selection)  # type: ignore[misc]


def digest_of(one: Side) -> Digest:
    digest = Digest()
    for _, _, keys, hashes in one.rows():
        digest.add(keys, hashes)
    return digest


def both(one: Callable[[], None], other: Callable[[], None]) -> None:
    one()
    other()


def compared(source: Side, destination: Side, wanted: int = 100) -> tuple[Suspects, list[Difference]]:
    digests = digest_of(source), digest_of(destination)
    if not digests[0].unlike(digests[1]).any():
        return Suspects(), []
    found = sort_out(source, destination, digests, wanted, both)
    return found, list(differences(source, destination, found))


def expected(source: list[Row], destination: list[Row], keyless: bool) -> tuple[int, int, int]:
    here, there = Counter(source), Counter(destination)
    only_here, only_there = here - there, there - here
    keys = {row if keyless else row[0] for row in (*only_here, *only_there)}
    missing = extra = changed = 0
    for key in keys:
        ours, theirs = (
            sum(count for row, count in side.items() if (row if keyless else row[0]) == key)
            for side in (only_here, only_there)
        )
        changed += min(ours, theirs)
        missing += max(0, ours - theirs)
        extra += max(0, theirs - ours)
    return missing, extra, changed


@pytest.mark.parametrize("key", [("id",), ("id", "note")])
@given(source=rows, destination=rows, cut=st.integers(0, 12))
def test_everything_that_differs_is_counted_and_shown(
    key: tuple[str, ...], source: list[Row], destination: list[Row], cut: int
) -> None:
    found, shown = compared(side(source, cut, key), side(destination, 12 - cut, key))
    counts = expected(source, destination, keyless=len(key) == 2)
    assert (found.missing, found.extra, found.changed) == counts
    kinds = Counter(one.kind for one in shown)
    assert (kinds["missing"], kinds["extra"], kinds["changed"]) == counts


@given(source=rows, destination=rows, share=st.floats(0.1, 0.9), seed=st.integers(0, 2**63))
def test_a_sample_is_of_the_same_keys_on_both_sides(
    source: list[Row], destination: list[Row], share: float, seed: int
) -> None:
    selection = Selection(sample=sample_of(share, seed))
    hashes = key_hashes(table([(number, "") for number in range(7)]), ("id",))
    chosen = selection.of(hashes)
    assert chosen is not None
    keys = set(np.flatnonzero(chosen).tolist())
    found, _ = compared(side(source, 3, ("id",), selection), side(destination, 3, ("id",), selection))
    left, right = ([row for row in some if row[0] in keys] for some in (source, destination))
    assert (found.missing, found.extra, found.changed) == expected(left, right, keyless=False)


@given(source=rows, destination=rows, chosen=st.sets(st.integers(0, 6)))
def test_rows_that_are_left_out_or_alone_are_chosen_by_key(
    source: list[Row], destination: list[Row], chosen: set[int]
) -> None:
    hashes = np.sort(key_hashes(table([(number, "") for number in chosen]), ("id",)))
    for selection, is_in in ((Selection(only=hashes), True), (Selection(without=hashes), False)):
        found, _ = compared(side(source, 3, ("id",), selection), side(destination, 3, ("id",), selection))
        left, right = ([row for row in some if (row[0] in chosen) is is_in] for some in (source, destination))
        assert (found.missing, found.extra, found.changed) == expected(left, right, keyless=False)


def test_a_sample_is_about_as_large_as_it_is_to_be() -> None:
    hashes = key_hashes(table([(number, "") for number in range(20_000)]), ("id",))
    for seed in (1, 2**40, 2**62):
        chosen = Selection(sample=sample_of(0.05, seed)).of(hashes)
        assert chosen is not None
        assert 800 < chosen.sum() < 1200
    assert sample_of(1.0, 1) is None


def test_what_does_not_fit_into_one_file_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "ROWS_AT_ONCE", 100)
    source = [(number, "a") for number in range(3000)]
    destination = [(number, "a" if number % 3 else "b") for number in range(10, 3005)]
    found, shown = compared(side(source, 1000, ("id",)), side(destination, 500, ("id",)), wanted=7)
    assert (found.missing, found.extra) == (10, 5)
    assert found.changed == len([number for number in range(10, 3000) if number % 3 == 0])
    assert len(shown) == 7


def test_a_row_many_times_is_held_once() -> None:
    """A table without a key may have nothing but equal rows."""
    hashes = np.full(100_000, 7, np.uint64)
    found = np.zeros(100_000, comparing._ROW)
    found["key"], found["row"], found["count"] = hashes, hashes, 1
    (kept,) = comparing.compact(found)
    assert kept["count"] == 100_000


def test_only_parts_in_which_something_was_met_are_read_again() -> None:
    read: list[int] = []

    def part(number: int) -> Callable[[], list[pa.Table]]:
        def rows_of_part() -> list[pa.Table]:
            read.append(number)
            return [table([(number, "a")])]

        return rows_of_part

    source = Side([part(number) for number in range(5)], ("id",))
    destination = side([(0, "a"), (1, "a"), (2, "b"), (3, "a"), (4, "a")], 5, ("id",))
    found, shown = compared(source, destination)
    assert [one.kind for one in shown] == ["changed"]
    assert shown[0].columns == {"note": ("a", "b")}
    assert read == [*range(5), *range(5), 2]
    assert found.source_parts == frozenset({2})
