"""What is complete, how far it has come, and in which order ranges are begun."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.changes.batch import Target
from airflow_provider_pgetl.engine.context import SourceServer
from airflow_provider_pgetl.engine.copy.ranges import RangeOutcome, RangeTask
from airflow_provider_pgetl.engine.copy.table_copy import TableCopy, Truncates, largest_first
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.positions import START, Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.tables import TableName, TableSchema
from airflow_provider_pgetl.engine.source.range_reading import Range
from airflow_provider_pgetl.engine.wal.pgoutput import Begin, Commit, Keepalive, Message, TruncateMessage
from tests.engine.changes.pgoutput import insert
from tests.engine.wal.control_messages import encode


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


# -- Which tables were truncated since a snapshot, as a slot tells it; the server is played. ---------------------------

BROKEN = PgetlError(ErrorKind.CONNECTION, "The connection broke.")
SNAPSHOT = Boundary(50)
Sent = Sequence[Message | bytes] | PgetlError


class Played:
    """A source whose connections each send some lots of messages, and nothing after that."""

    sender_timeout = None
    described_since = None
    sends_empty = False

    def __init__(self, end: int, *connections: Sequence[Sent]) -> None:
        self.end = Boundary(end)
        self.connections = [list(lots) for lots in connections]
        self.starts: list[Boundary] = []
        self.confirmed: list[Boundary] = []

    @contextmanager
    def session(self, worker: str) -> Iterator[Played]:
        del worker
        yield self

    def inserted_position(self) -> Boundary:
        return self.end

    @contextmanager
    def stream(self, *_: object, start: Boundary, **__: Any) -> Iterator[Played]:
        self.starts.append(start)
        self.lots = self.connections.pop(0)
        yield self

    def receive(self, timeout: float) -> list[bytes]:
        del timeout
        lot = self.lots.pop(0)
        if isinstance(lot, PgetlError):
            raise lot
        return [each if isinstance(each, bytes) else encode(each) for each in lot]

    def send_feedback(self, boundary: Boundary, *, reply_requested: bool) -> None:
        del reply_requested
        self.confirmed.append(boundary)


def truncates(source: Played) -> Truncates:
    return Truncates(cast(SourceServer, source), "c1", "slot", ("p",), SNAPSHOT)


def begin(at: int) -> Begin:
    return Begin(CommitLsn(at), 0, 1)


def commit(at: int) -> Commit:
    return Commit(CommitLsn(at), Boundary(at + 10), 0)


def truncate(*relations: int) -> TruncateMessage:
    return TruncateMessage(relations, cascade=False, restart_identity=False)


def alive(at: int) -> Keepalive:
    return Keepalive(Boundary(at), 0, reply_requested=False)


def asked(found: Truncates, relation: int) -> Boundary | None:
    return found.first_of(relation, lambda: False)


def test_each_table_has_its_first_truncate_and_all_are_read_once() -> None:
    first = (begin(100), truncate(7), truncate(9), insert(7, (b"1",)), commit(100))
    source = Played(500, [(*first, begin(200), truncate(7, 8), commit(200), alive(600))])
    found = truncates(source)
    assert [asked(found, relation) for relation in (7, 9, 8)] == [Boundary(110), Boundary(110), Boundary(210)]
    assert source.starts == [SNAPSHOT]
    assert set(source.confirmed) <= {START}


def test_one_that_was_not_truncated() -> None:
    source = Played(500, [(), (begin(100), commit(100), alive(499)), (alive(500),)])
    assert asked(truncates(source), 7) is None
    assert source.lots == []
    assert source.confirmed == [START], "nobody but the catch-up confirms"


def test_within_a_transaction_nothing_says_how_far_it_was_read() -> None:
    source = Played(500, [(begin(100), alive(600)), (truncate(7), commit(100))])
    assert asked(truncates(source), 7) == Boundary(110)


def test_a_question_that_failed_is_asked_again_from_where_the_reading_ended() -> None:
    lost = (begin(100), commit(100), begin(200), truncate(7))
    source = Played(500, [lost, BROKEN], [(begin(200), commit(200), begin(300), truncate(7), commit(300))])
    found = truncates(source)
    with pytest.raises(PgetlError):
        asked(found, 7)
    assert asked(found, 7) == Boundary(310)
    assert source.starts == [SNAPSHOT, Boundary(110)]


def test_a_copy_that_is_over_asks_no_further() -> None:
    source = Played(500, [()])
    assert truncates(source).first_of(7, lambda: True) is None
    assert source.lots == [()]
