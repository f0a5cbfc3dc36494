"""Folding a table's changes and applying the net effect leaves what applying them one by one leaves."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.changes.batch import WireRows, wire_rows
from airflow_provider_pgetl.engine.changes.fold import Net, fold, fold_bag
from airflow_provider_pgetl.engine.changes.tuples import ABSENT as ABSENT_KIND
from airflow_provider_pgetl.engine.changes.tuples import Tuples
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import Column, Identity, PgType, TableName, TableSchema
from tests.engine.changes import pgoutput

TEXT = PgType(25, "text")
RowValues = tuple[bytes | None, ...]
Replica = dict[tuple[bytes | None, ...], RowValues]


def schema_of(key: tuple[str, ...], identity: Identity = "default") -> TableSchema:
    columns = tuple(Column(name, TEXT, "text") for name in ("a", "b", "small", "big"))
    return TableSchema(TableName("public", "t"), 7, columns, key, identity)


@dataclass
class Source:
    """A table at the source: what it holds, and the messages that its changes were sent as.

    `out_of_line`: its key columns are stored so, and each update sends the old key and leaves out what it keeps of it.
    `partitioned`: the rows lie in a partition that has replica identity default, whatever the root's.
    """

    schema: TableSchema
    out_of_line: bool = False
    partitioned: bool = False
    rows: dict[tuple[bytes | None, ...], RowValues] = field(default_factory=dict)
    messages: list[bytes] = field(default_factory=list)

    def key(self, row: RowValues) -> tuple[bytes | None, ...]:
        return tuple(row[index] for index in self.schema.key_indexes)

    def insert(self, row: RowValues) -> None:
        self.rows[self.key(row)] = row
        self.messages.append(pgoutput.insert(7, row))

    def update(self, old: RowValues, new: RowValues) -> None:
        del self.rows[self.key(old)]
        self.rows[self.key(new)] = new
        sent: list[pgoutput.Value] = [*new[:3], pgoutput.ABSENT if new[3] == old[3] else new[3]]
        if self.out_of_line:
            kept = [index for index in self.schema.key_indexes if old[index] == new[index]]
            sent = [pgoutput.ABSENT if index in kept else value for index, value in enumerate(sent)]
        if self.sends_whole_rows or self.out_of_line or self.key(old) != self.key(new):
            self.messages.append(pgoutput.update(7, sent, **self._known_by(old)))
        else:
            self.messages.append(pgoutput.update(7, sent))

    def delete(self, old: RowValues) -> None:
        del self.rows[self.key(old)]
        self.messages.append(pgoutput.delete(7, **self._known_by(old)))

    @property
    def sends_whole_rows(self) -> bool:
        return self.schema.identity == "full" and not self.partitioned

    def _known_by(self, old: RowValues) -> dict[str, RowValues]:
        """The marker is the root's, the tuple is the partition's."""
        row = old if self.sends_whole_rows else self._key_row(old)
        return {"old" if self.schema.identity == "full" else "key": row}

    def _key_row(self, row: RowValues) -> RowValues:
        return tuple(v if i in self.schema.key_indexes else None for i, v in enumerate(row))

    def take_changes(self) -> WireRows:
        messages, self.messages = self.messages, []
        return wire_rows(self.schema, messages, [(0, 100, 0)], range(1, len(messages) + 1))


def live(source: Source, choose: random.Random, steps: int) -> None:
    """Random changes, among few keys, so that keys are reused, moved, swapped and chained."""
    for step in range(steps):
        fresh = (b"%d" % choose.randrange(4), b"%d" % choose.randrange(2), b"s%d" % step, None)
        big = choose.choice([None, b"", b"B%d" % step])
        if source.rows and choose.random() < 0.75:
            _touch(source, choose, (*fresh[:3], big))
        elif source.key((*fresh[:3], big)) not in source.rows:
            source.insert((*fresh[:3], big))


def _touch(source: Source, choose: random.Random, fresh: RowValues) -> None:
    old = choose.choice(list(source.rows.values()))
    if choose.random() < 0.25:
        return source.delete(old)
    big = old[3] if choose.random() < 0.6 else fresh[3]
    moved = (*fresh[:3], big)
    stays = (*old[:2], fresh[2], big)
    return source.update(old, moved if source.key(moved) not in source.rows else stays)


def values(tuples: Tuples, row: int) -> RowValues:
    return tuple(tuples.value(column, row) for column in range(tuples.width))


def apply_net(replica: Replica, net: Net, key_indexes: tuple[int, ...]) -> None:
    """Just what the docstring of `fold` tells a destination to do, strict about what must be there and what must
    not."""
    for row in range(net.deletes.count):
        del replica[values(net.deletes, row)]
    bases = [replica.pop(values(net.moves_from, row)) for row in range(net.moves_from.count)]
    for row, base in enumerate(bases):
        _put(replica, _overlaid(net.moves_to, row, base), key_indexes)
    for row in range(net.updates.count):
        key = tuple(net.updates.value(index, row) for index in key_indexes)
        _put(replica, _overlaid(net.updates, row, replica.pop(key)), key_indexes)
    for row in range(net.inserts.count):
        assert not net.inserts.absent[:, row].any()
        _put(replica, values(net.inserts, row), key_indexes)


def _overlaid(tuples: Tuples, row: int, base: RowValues) -> RowValues:
    return tuple(
        base[column] if tuples.kinds[column, row] == ABSENT_KIND else tuples.value(column, row)
        for column in range(tuples.width)
    )


def _put(replica: Replica, row: RowValues, key_indexes: tuple[int, ...]) -> None:
    key = tuple(row[index] for index in key_indexes)
    assert key not in replica, "two rows of one key"
    replica[key] = row


@pytest.mark.parametrize("identity", ["default", "full"])
@pytest.mark.parametrize("key", [("a",), ("a", "b"), ("b", "a")])
@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(st.integers(0, 25), min_size=1, max_size=4),
    out_of_line=st.booleans(),
    partitioned=st.booleans(),
)
def test_net_effect_equals_the_changes_one_by_one(
    key: tuple[str, ...], identity: Identity, seed: int, steps: list[int], out_of_line: bool, partitioned: bool
) -> None:
    source = Source(schema_of(key, identity), out_of_line, partitioned)
    replica: Replica = {}
    choose = random.Random(seed)
    for count in steps:
        live(source, choose, count)
        apply_net(replica, fold(source.take_changes()), source.schema.key_indexes)
        assert replica == source.rows


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(0, 40))
def test_each_row_is_touched_at_most_once(seed: int, steps: int) -> None:
    source = Source(schema_of(("a",)))
    choose = random.Random(seed)
    live(source, choose, 10)
    source.take_changes()
    live(source, choose, steps)
    net = fold(source.take_changes())
    touched = [values(net.deletes, row) for row in range(net.deletes.count)]
    touched += [values(net.moves_from, row) for row in range(net.moves_from.count)]
    touched += [(net.updates.value(0, row),) for row in range(net.updates.count)]
    assert max(Counter(touched).values(), default=0) <= 1


def test_a_swap_of_two_keys_is_two_moves_that_keep_absent_values() -> None:
    source = Source(schema_of(("a",)))
    source.insert((b"1", b"", b"one", b"BIG1"))
    source.insert((b"2", b"", b"two", b"BIG2"))
    replica: Replica = {}
    apply_net(replica, fold(source.take_changes()), (0,))
    source.update(source.rows[(b"1",)], (b"3", b"", b"one", b"BIG1"))
    source.update(source.rows[(b"2",)], (b"1", b"", b"two", b"BIG2"))
    source.update(source.rows[(b"3",)], (b"2", b"", b"one", b"BIG1"))
    net = fold(source.take_changes())
    assert (net.moves_from.count, net.updates.count, net.inserts.count, net.deletes.count) == (2, 0, 0, 0)
    assert net.moves_to.absent[3].all()
    apply_net(replica, net, (0,))
    assert replica == source.rows


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 25), min_size=1, max_size=4))
def test_a_keyless_table_is_a_bag(seed: int, steps: list[int]) -> None:
    """Equal rows may come twice; each delete takes one."""
    schema = schema_of((), "full")
    choose = random.Random(seed)
    held: list[RowValues] = []
    replica: Counter[RowValues] = Counter()
    for count in steps:
        messages = [_change_bag(held, choose) for _ in range(count)]
        net = fold_bag(wire_rows(schema, messages, [(0, 100, 0)], range(count)))
        replica.subtract(values(net.deletes, row) for row in range(net.deletes.count))
        assert all(left >= 0 for left in replica.values())
        replica.update(values(net.inserts, row) for row in range(net.inserts.count))
        assert +replica == Counter(held)


def _change_bag(held: list[RowValues], choose: random.Random) -> bytes:
    fresh = (b"%d" % choose.randrange(3), choose.choice([None, b""]), b"", choose.choice([None, b"BIG"]))
    if not held or choose.random() < 0.4:
        held.append(fresh)
        return pgoutput.insert(7, fresh)
    old = held.pop(choose.randrange(len(held)))
    if choose.random() < 0.4:
        return pgoutput.delete(7, old=old)
    held.append(fresh)
    sent = [*fresh[:3], pgoutput.ABSENT if fresh[3] == old[3] and fresh[3] else fresh[3]]
    return pgoutput.update(7, sent, old=old)


WHOLE: tuple[pgoutput.Value, ...] = (b"1", b"b", b"s", b"big")
ABSENT_KEY: tuple[pgoutput.Value, ...] = (pgoutput.ABSENT, b"b", b"s", b"big")
NULL_KEY: tuple[pgoutput.Value, ...] = (None, b"b", None, None)
REFUSED = {
    "an insert without a value": (("a",), pgoutput.insert(7, (b"1", b"b", b"s", pgoutput.ABSENT)), "came without big"),
    "an insert without its key": (("a",), pgoutput.insert(7, ABSENT_KEY), "came without a"),
    "an update whose new key nothing tells": (("a",), pgoutput.update(7, ABSENT_KEY), "does not say by a"),
    "a key that the old row does not have": (("a",), pgoutput.update(7, WHOLE, key=NULL_KEY), "does not say by a"),
    "an update that leaves the row without a key": (
        ("a",),
        pgoutput.update(7, NULL_KEY, key=(b"1", None, None, None)),
        "does not say by a",
    ),
    "a delete by another identity": (("a",), pgoutput.delete(7, key=NULL_KEY), "does not say by a"),
    "an update of a bag without the old row": ((), pgoutput.update(7, WHOLE), "does not say by all its values"),
    "an update of a bag without a value": (
        (),
        pgoutput.update(7, (b"1", b"b", b"s", pgoutput.ABSENT), old=NULL_KEY),
        "does not say by all its values",
    ),
    "an update of a bag whose old row is not whole": (
        (),
        pgoutput.update(7, WHOLE, old=(b"1", b"b", b"s", pgoutput.ABSENT)),
        "does not say by all its values",
    ),
}


@pytest.mark.parametrize(("key", "message", "said"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("look", ["old", "new", "changes"])
def test_what_does_not_say_its_row_or_is_not_whole_is_an_error_of_the_table(
    key: tuple[str, ...], message: bytes, said: str, look: str
) -> None:
    rows = wire_rows(schema_of(key, "default" if key else "full"), [message], [(0, 100, 0)], [1])
    with pytest.raises(PgetlError, match=said) as refused:
        list(rows.changes()) if look == "changes" else getattr(rows, look)
    assert refused.value.table == "public.t"
    assert refused.value.kind in (ErrorKind.UNSENT_VALUE, ErrorKind.UNKNOWN_ROW)
