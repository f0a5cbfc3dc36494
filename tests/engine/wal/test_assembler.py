"""Rows come out once each, in order, with their positions, however the payloads are cut and the chunks are sealed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.positions import Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.wal.assembler import Assembler, Batch, Event
from airflow_provider_pgetl.engine.wal.pgoutput import (
    HEADER,
    Begin,
    Commit,
    Keepalive,
    Origin,
    Relation,
    RelationColumn,
    TruncateMessage,
    Type,
)
from airflow_provider_pgetl.engine.wal.spool import Budget, Sealed, Spool, TruncateStep
from tests.engine.changes import pgoutput
from tests.engine.wal.control_messages import encode

# -- a source that remembers what it said -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A change as it must come out: where it stood among all, whose it is, its position, its bytes."""

    number: int
    key: str
    relation: Relation
    commit_lsn: int
    commit_time: int
    ordinal: int
    payload: bytes | None


def relation(oid: int, form: int = 0) -> Relation:
    column = RelationColumn("id", 23, -1, key=True)
    return Relation(oid, TableName("public", f"t{oid}"), "default", (column, replace(column, name=f"c{form}")))


@dataclass
class Source:
    """Says transactions in pgoutput. Relations with an odd OID are owned, from their transaction `owned_from` on."""

    payloads: list[bytes] = field(default_factory=list)
    expected: list[Row] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)
    forms: dict[int, Relation] = field(default_factory=dict)
    owned_from: int = 0
    lsn: int = 1000
    ordinal: int = 0

    def owns(self, oid: int, commit_lsn: CommitLsn) -> str | None:
        return f"key of {oid}" if oid % 2 and commit_lsn >= self.owned_from else None

    def begin(self) -> None:
        self.lsn += 10
        self.ordinal = 0
        self.payloads.append(encode(Begin(CommitLsn(self.lsn), self.lsn * 2, 1)))

    def commit(self) -> None:
        self.payloads.append(encode(Commit(CommitLsn(self.lsn), Boundary(self.lsn + 10), self.lsn * 2)))
        self.commits.append(self.lsn)

    def describe(self, oid: int, form: int = 0) -> None:
        self.forms[oid] = relation(oid, form)
        self.payloads.append(encode(self.forms[oid]))

    def row(self, oid: int, kind: str) -> None:
        values = [b"%d" % len(self.payloads)]
        payload = {
            "I": lambda: pgoutput.insert(oid, values),
            "U": lambda: pgoutput.update(oid, values, key=values),
            "D": lambda: pgoutput.delete(oid, key=values),
        }[kind]()
        self.ordinal += 1
        self._expect(oid, payload)
        self.payloads.append(payload)

    def truncate(self, oids: Sequence[int]) -> None:
        self.ordinal += 1
        for oid in oids:
            self._expect(oid, None)
        self.payloads.append(encode(TruncateMessage(tuple(oids), cascade=False, restart_identity=False)))

    def keepalive(self) -> None:
        self.payloads.append(encode(Keepalive(Boundary(self.lsn), 0, reply_requested=False)))

    def _expect(self, oid: int, payload: bytes | None) -> None:
        key = self.owns(oid, CommitLsn(self.lsn))
        if key is not None:
            form = self.forms[oid]
            self.expected.append(Row(len(self.payloads), key, form, self.lsn, self.lsn * 2, self.ordinal, payload))


def rows_of(batch: Batch[str]) -> list[Row]:
    """A batch's content in the order in which it is applied."""
    out: list[Row] = []
    for step in batch.steps:
        if isinstance(step, TruncateStep):
            position = (step.commit_lsn, step.commit_time, step.ordinal)
            out.append(Row(-1, step.key, step.relation, *position, None))
        else:
            out.extend(_sealed_rows(step))
    return out


def _sealed_rows(step: Sealed[str]) -> list[Row]:
    first_rows = step.commits[:, 0].tolist()
    assert first_rows[0] == 0
    assert all(a < b for a, b in pairwise(first_rows)), "an empty run"
    assert len(set(step.commits[:, 1].tolist())) == len(first_rows), "a transaction has two runs"
    out, at, run = [], 0, -1
    for index, (length, ordinal) in enumerate(zip(step.lengths.tolist(), step.ordinals.tolist(), strict=True)):
        run += index in first_rows
        _, lsn, time = step.commits[run].tolist()
        out.append(Row(-1, step.key, step.relation, lsn, time, ordinal, step.data[at : at + length]))
        at += length
    assert at == len(step.data)
    return out


def numbered(rows: list[Row], source: Source) -> list[Row]:
    known = {(row.commit_lsn, row.ordinal, row.key): row.number for row in source.expected}
    return [replace(row, number=known[row.commit_lsn, row.ordinal, row.key]) for row in rows]


def assembler_of(source: Source, chunk_bytes: int = 8 << 20) -> Assembler[str]:
    budget = Budget(500)
    return Assembler(source.owns, lambda: Spool(budget), chunk_bytes=chunk_bytes)


def kind_of(row: Row) -> str:
    return "T" if row.payload is None else row.payload[HEADER : HEADER + 1].decode()


# -- what must hold for every stream ----------------------------------------------------------------------------------

changes = st.one_of(
    st.tuples(st.just("row"), st.integers(1, 5), st.sampled_from("IUD")),
    st.tuples(st.just("row"), st.integers(1, 2), st.sampled_from("IUD")),
    st.tuples(st.just("describe"), st.integers(1, 5), st.integers(0, 1)),
    st.tuples(st.just("truncate"), st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True)),
    st.tuples(st.just("keepalive")),
)
transactions = st.lists(st.lists(changes, max_size=12), max_size=8)


def said(transactions_: list[list[tuple[object, ...]]], owned_from: int) -> Source:
    source = Source(owned_from=owned_from)
    for transaction in transactions_:
        source.begin()
        for name, *arguments in transaction:
            for oid in _spoken_of(name, arguments):
                if oid not in source.forms:
                    source.describe(oid)
            getattr(source, str(name))(*arguments)
        source.commit()
    return source


def _spoken_of(name: object, arguments: list[object]) -> Sequence[int]:
    if name == "truncate":
        return arguments[0]  # type: ignore[return-value]  # the strategy above: a list of OIDs
    return [arguments[0]] if name == "row" else []  # type: ignore[list-item]  # the strategy above: an OID


def batches_of(assembler: Assembler[str], source: Source, cut: int, data: st.DataObject) -> Iterator[Batch[str]]:
    """Batches taken at some commits, of payloads that come `cut` at a time."""
    for start in range(0, len(source.payloads), cut):
        for event in assembler.feed_many(source.payloads[start : start + cut]):
            if isinstance(event, Commit) and data.draw(st.booleans()):
                yield assembler.take()


@settings(max_examples=300)
@given(transactions, st.integers(1000, 1060), st.integers(1, 600), st.integers(1, 40), st.data())
def test_every_owned_change_comes_out_once_in_order_with_its_position(
    transactions_: list[list[tuple[object, ...]]], owned_from: int, chunk: int, cut: int, data: st.DataObject
) -> None:
    source = said(transactions_, owned_from)
    assembler = assembler_of(source, chunk)
    batches = [*batches_of(assembler, source, cut, data), assembler.take()]

    assert sum(batch.transactions for batch in batches) == len(source.commits)
    for batch in batches:
        assert batch.steps.rows == sum(row.payload is not None for row in rows_of(batch))
    out = [row for batch in batches for row in numbered(rows_of(batch), source)]
    assert Counter(out) == Counter(source.expected)
    counted = Counter[tuple[str, str]]()
    for key, rows in (each for batch in batches for each in batch.counts.values()):
        counted.update({(key, kind): count for kind, count in zip("IUDT", astuple(rows), strict=True) if count})
    assert counted == Counter((row.key, kind_of(row)) for row in source.expected)
    for key in {row.key for row in out}:
        assert [row for row in out if row.key == key] == [row for row in source.expected if row.key == key]
    for place, row in enumerate(out):
        if row.payload is None:
            assert all(before.number <= row.number for before in out[:place]), "something overtook a truncate"
            assert all(after.number >= row.number for after in out[place:]), "something overtook a truncate"


@settings(max_examples=100)
@given(transactions, st.integers(1, 600), st.data())
def test_a_batch_holds_whole_transactions_up_to_its_last_commit(
    transactions_: list[list[tuple[object, ...]]], chunk: int, data: st.DataObject
) -> None:
    source = said(transactions_, 0)
    assembler = assembler_of(source, chunk)
    reached = 0
    for event in assembler.feed_many(source.payloads):
        if isinstance(event, Commit) and data.draw(st.booleans()):
            batch = assembler.take()
            assert batch.last == event
            due = [row for row in source.expected if reached < row.commit_lsn <= event.commit_lsn]
            assert Counter(numbered(rows_of(batch), source)) == Counter(due)
            reached = event.commit_lsn


# -- single rules -----------------------------------------------------------------------------------------------------


def told(*words: str) -> Source:
    """A source that has said these words: `B` begins, `C` commits, `d1` describes relation 1 (`d1/1` otherwise), `I1`,
    `U1` and `D1` are rows of it, `T12` truncates 1 and 2, `k` is a keepalive."""
    source = Source()
    for word in " ".join(words).split():
        match word[0]:
            case "B":
                source.begin()
            case "C":
                source.commit()
            case "d":
                oid, _, form = word[1:].partition("/")
                source.describe(int(oid), int(form or 0))
            case "T":
                source.truncate([int(oid) for oid in word[1:]])
            case "k":
                source.keepalive()
            case kind:
                source.row(int(word[1:]), kind)
    return source


def fed(assembler: Assembler[str], source: Source) -> list[Event]:
    payloads, source.payloads = source.payloads, []
    return list(assembler.feed_many(payloads))


def names_of(events: Sequence[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def taken(source: Source, assembler: Assembler[str] | None = None) -> Batch[str]:
    assembler = assembler or assembler_of(source)
    fed(assembler, source)
    return assembler.take()


def test_the_owner_hears_of_everything_but_rows_in_order() -> None:
    source = told("k B d1 I1 T1 k C")
    names = names_of(fed(assembler_of(source), source))
    assert names == ["Keepalive", "Begin", "Relation", "TruncateMessage", "Keepalive", "Commit"]


def test_types_and_origins_are_no_events_and_take_no_ordinal() -> None:
    source = told("B")
    source.payloads.append(encode(Origin(CommitLsn(1), "elsewhere")))
    source.payloads.append(encode(Type(99, "public", "mood")))
    source.describe(1)
    source.row(1, "I")
    source.commit()
    assembler = assembler_of(source)
    assert names_of(fed(assembler, source)) == ["Begin", "Relation", "Commit"]
    assert [row.ordinal for row in rows_of(assembler.take())] == [1]


def test_skipped_rows_and_truncates_take_an_ordinal_and_descriptions_take_none() -> None:
    rows = rows_of(taken(told("B d1 d2 I2 T2 d1 I1 U2 T12 D1 C")))
    assert [row.ordinal for row in rows] == [3, 5, 6]


def test_ownership_is_asked_once_per_transaction_and_relation() -> None:
    source = told("B d1 I1 U1 D1 I1 U1 D1 d2 I2 U2 D2 I2 U2 D2 T12 I1 C " * 2)
    asked: list[tuple[int, int]] = []

    def owns(oid: int, commit_lsn: CommitLsn) -> str | None:
        asked.append((oid, commit_lsn))
        return source.owns(oid, commit_lsn)

    assembler: Assembler[str] = Assembler(owns, lambda: Spool(Budget(0)), chunk_bytes=1)
    for payload in source.payloads:
        list(assembler.feed_many([payload]))
    assert asked == [(1, 1010), (2, 1010), (1, 1020), (2, 1020)]


def test_a_relation_that_changes_within_a_transaction_is_sealed_and_asked_for_again() -> None:
    keys = iter(["key 1", "key 2"])
    assembler: Assembler[str] = Assembler(lambda _oid, _lsn: next(keys), lambda: Spool(Budget(0)))
    rows = rows_of(taken(told("B d1/0 I1 d1/1 I1 C"), assembler))
    assert [(row.relation, row.key) for row in rows] == [(relation(1, 0), "key 1"), (relation(1, 1), "key 2")]


def test_rows_of_different_keys_share_no_step() -> None:
    assembler: Assembler[str] = Assembler(lambda _, lsn: f"key from {lsn}", lambda: Spool(Budget(0)))
    rows = rows_of(taken(told("B d1 I1 C B I1 C"), assembler))
    assert [row.key for row in rows] == ["key from 1010", "key from 1020"]


def test_a_truncate_of_others_tables_is_no_barrier() -> None:
    assert len(taken(told("B d1 d2 I1 T2 I1 C")).steps) == 1


def test_the_owner_may_stop_at_an_event_and_draw_on_later() -> None:
    source = told("B d1 I1 C " * 2)
    assembler = assembler_of(source)
    events = assembler.feed_many(source.payloads)
    assert names_of([next(events), next(events)]) == ["Begin", "Relation"]
    assert assembler.in_transaction
    assert isinstance(next(events), Commit)
    assert (assembler.in_transaction, assembler.rows) == (False, 1)
    with pytest.raises(PgetlError, match="before what came earlier"):
        assembler.feed_many(source.payloads)
    assert (assembler.take().transactions, assembler.rows) == (1, 0)
    list(events)
    assert assembler.rows == 1
    assert assembler.take().transactions == 1


def test_an_empty_batch_has_no_last_commit() -> None:
    batch = assembler_of(Source()).take()
    assert (len(batch.steps), batch.transactions, batch.last) == (0, 0, None)


def test_chunks_bound_what_is_gathered_within_one_transaction() -> None:
    source = told("B d1 d3", "I1 I3 " * 3000)
    assembler = assembler_of(source, chunk_bytes=100 * len(source.payloads[-1]))
    payloads, source.payloads = source.payloads, []
    for start in range(0, len(payloads), 20):
        list(assembler.feed_many(payloads[start : start + 20]))
        assert assembler.rows - assembler._steps.rows <= 170, "open rows"
    source.commit()
    steps = taken(source, assembler).steps
    assert steps.rows == 6000
    assert steps.spilled_bytes > 0
    assert len(steps) < 6000 / 20


def test_skipped_bytes_do_not_make_chunks_small() -> None:
    source = told("B d1 d2", ("I1" + " I2" * 50 + " ") * 100, "C")
    assembler = assembler_of(source, chunk_bytes=100 * len(source.payloads[3]))
    for payload in source.payloads:
        list(assembler.feed_many([payload]))
    assert len(assembler.take().steps) <= 3


def test_the_description_of_a_partition_goes_with_the_step_that_holds_its_first_row() -> None:
    """pgoutput describes the root and then the partition before the partition's first row, which comes as the root's.
    Tables that are truncated together are described one after the other as well."""
    source = told("B d1 d7 T17 I7 d1 d5 I1 U1 C B I1 C")
    assembler: Assembler[str] = Assembler(source.owns, lambda: Spool(Budget(0)), chunk_bytes=1)
    found = [
        (step.relation.oid, len(step), step.leaves)
        for event in assembler.feed_many(source.payloads)
        if isinstance(event, Commit)
        for step in assembler.take().steps
        if isinstance(step, Sealed)
    ]
    assert found == [(7, 1, ()), (1, 2, (relation(5),)), (1, 1, ())]
    (alone,) = taken(told("B d1 I1 d3 d5 I1 C")).steps
    assert isinstance(alone, Sealed)
    assert alone.leaves == (), "others were described between its rows"


# -- what a server never says -----------------------------------------------------------------------------------------


def test_a_batch_is_not_taken_inside_a_transaction() -> None:
    with pytest.raises(PgetlError, match="inside the transaction of 0/3F2"):
        taken(told("B"))


def of_another_transaction() -> Source:
    source = told("B")
    source.lsn += 1
    source.commit()
    return source


def not_described() -> Source:
    source = Source(forms={1: relation(1)})
    source.begin()
    source.row(1, "I")
    return source


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (not_described(), "relation 1 before describing it"),
        (told("B d1 I1 C I1"), "a row outside a transaction"),
        (told("B B"), "began a transaction inside"),
        (of_another_transaction(), "the commit of 0/3F3 in the transaction of 0/3F2"),
        (told("C"), "outside a transaction"),
    ],
)
def test_it_is_refused_and_nothing_more_is_taken_in(source: Source, why: str) -> None:
    assembler = assembler_of(source)
    with pytest.raises(PgetlError, match=why):
        fed(assembler, source)
    source.keepalive()
    with pytest.raises(PgetlError, match="before what came earlier"):
        fed(assembler, source)
