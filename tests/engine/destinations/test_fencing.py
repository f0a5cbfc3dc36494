"""Fencing: whatever overlaps, repeats or comes late, nobody writes who is no longer the owner."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.changes.batch import Move, Target
from airflow_provider_pgetl.engine.destinations import fencing
from airflow_provider_pgetl.engine.destinations.fencing import TableMetadata
from airflow_provider_pgetl.engine.model.errors import Fenced
from airflow_provider_pgetl.engine.model.positions import Boundary
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema

TABLE = TableName("public", "t")
SCHEMA = TableSchema(TABLE, 1, (), ())
smalls = st.integers(1, 4)


def move(expected: int, to: int, generation: int = 1) -> Move:
    return Move(Target("p", SCHEMA, generation), Boundary(expected), Boundary(to))


def test_a_later_epoch_claims_and_an_earlier_one_comes_too_late() -> None:
    assert fencing.claim(None, 1) == 1
    assert fencing.claim(1, 2) == 2
    assert fencing.claim(2, 2) == 2
    with pytest.raises(Fenced, match="epoch 2 has claimed"):
        fencing.claim(2, 1)


def test_a_batch_is_applied_once_even_when_it_is_sent_twice() -> None:
    records = {TABLE: TableMetadata(1, 1, 1, Boundary(10))}
    moved = fencing.write(5, 5, records, [move(10, 20)])
    assert moved == {TABLE: TableMetadata(1, 1, 1, Boundary(20))}
    assert fencing.write(5, 5, moved, [move(10, 20)]) is None


@pytest.mark.parametrize(
    ("epoch", "claimed", "record", "asked"),
    [
        (5, 6, TableMetadata(1, 1, 1, Boundary(10)), move(10, 20)),
        (5, 4, TableMetadata(1, 1, 1, Boundary(10)), move(10, 20)),
        (5, None, TableMetadata(1, 1, 1, Boundary(10)), move(10, 20)),
        (5, 5, TableMetadata(2, 1, 1, Boundary(10)), move(10, 20)),
        (5, 5, TableMetadata(1, 1, 1, Boundary(9)), move(10, 20)),
        (5, 5, TableMetadata(1, 1, 1, Boundary(30)), move(10, 20)),
        (5, 5, TableMetadata(1, 2, 0, None), move(10, 20)),
        (5, 5, TableMetadata(1, 1, 1, Boundary(10)), move(10, 9)),
        (5, 5, None, move(10, 20)),
    ],
    ids=[
        "a later epoch claimed",
        "our epoch never claimed",
        "nobody claimed",
        "another generation",
        "behind",
        "ahead",
        "a copy began",
        "backwards",
        "unknown table",
    ],
)
def test_a_write_is_refused(epoch: int, claimed: int | None, record: TableMetadata | None, asked: Move) -> None:
    with pytest.raises(Fenced):
        fencing.write(epoch, claimed, {TABLE: record} if record else {}, [asked])


def test_one_table_out_of_place_refuses_the_whole_batch_and_is_named() -> None:
    other = TableName("public", "other")
    elsewhere = Move(Target("p", TableSchema(other, 2, (), ()), 1), Boundary(10), Boundary(20))
    records = {TABLE: TableMetadata(1, 1, 1, Boundary(10)), other: TableMetadata(1, 1, 1, Boundary(11))}
    with pytest.raises(Fenced, match=r"public\.other") as caught:
        fencing.write(1, 1, records, [move(10, 20), elsewhere])
    assert caught.value.table == "public.other"


def test_what_was_published_stays_published_when_its_messages_come_again() -> None:
    record = fencing.begin(None, 1, 3, TABLE)
    published = fencing.finish(record, 1, 3, Boundary(10), TABLE)
    assert published == TableMetadata(1, 3, 3, Boundary(10))
    assert fencing.begin(published, 1, 3, TABLE) == published
    assert fencing.finish(published, 1, 3, Boundary(10), TABLE) is None
    with pytest.raises(Fenced, match="already published"):
        fencing.check_range(published, 1, 3, TABLE)


def test_an_adopted_table_refuses_the_generation_before() -> None:
    record = fencing.adopt(TableMetadata(1, 3, 3, Boundary(10)), 2, TABLE)
    assert fencing.adopt(record, 2, TABLE) == record
    with pytest.raises(Fenced):
        fencing.write(1, 1, {TABLE: record}, [move(10, 20, generation=1)])
    with pytest.raises(Fenced, match="superseded by 2"):
        fencing.begin(record, 1, 3, TABLE)


def test_a_table_without_a_position_cannot_be_adopted() -> None:
    for record in (None, TableMetadata(1, 3)):
        with pytest.raises(Fenced, match="no position"):
            fencing.adopt(record, 2, TABLE)


@dataclass
class Table:
    """A table under requests of any order; remembers what was granted."""

    record: TableMetadata | None = None
    began: list[tuple[int, int]] = field(default_factory=list)

    def ask(self, verb: str, generation: int, attempt: int) -> bool:
        try:
            getattr(self, verb)(generation, attempt)
        except Fenced:
            return False
        return True

    def begin(self, generation: int, attempt: int) -> None:
        self.record = fencing.begin(self.record, generation, attempt, TABLE)
        self.began.append((generation, attempt))

    def finish(self, generation: int, attempt: int) -> None:
        answer = fencing.finish(self.record, generation, attempt, Boundary(attempt), TABLE)
        self.record = answer or self.record

    def write(self, generation: int, attempt: int) -> None:
        fencing.write(1, 1, {TABLE: self.record} if self.record else {}, [move(attempt, attempt, generation)])

    def adopt(self, generation: int, attempt: int) -> None:
        self.record = fencing.adopt(self.record, generation, TABLE)


@given(st.lists(st.tuples(st.sampled_from(["begin", "finish", "adopt", "write"]), smalls, smalls), max_size=30))
def test_any_order_of_requests_only_ever_raises_what_is_recorded(requests: list[tuple[str, int, int]]) -> None:
    table = Table()
    for verb, generation, attempt in requests:
        before = table.record or fencing.UNKNOWN
        granted = table.ask(verb, generation, attempt)
        after = table.record or fencing.UNKNOWN
        assert (after.generation, after.attempt) >= (before.generation, before.attempt)
        assert after.attempt >= before.attempt
        assert (after.position is None) == (after.published != after.attempt or after.attempt == 0)
        assert granted or after == before


@given(st.lists(st.tuples(st.sampled_from(["begin", "finish", "write"]), smalls, smalls), max_size=30))
def test_once_an_attempt_began_nothing_earlier_is_granted(requests: list[tuple[str, int, int]]) -> None:
    table = Table()
    for verb, generation, attempt in requests:
        before, latest = table.record, max((began[1] for began in table.began), default=0)
        if table.ask(verb, generation, attempt) and table.record != before:
            assert attempt >= latest
            assert generation >= max((began[0] for began in table.began), default=0)
