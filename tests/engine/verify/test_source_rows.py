"""Which keys changed between two points, as a slot tells it; the server is played."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from airflow_provider_pgetl.engine.model.positions import START, Boundary, CommitLsn
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.verify import source_rows
from airflow_provider_pgetl.engine.verify.source_rows import Changed, ChangedKeys, Window
from airflow_provider_pgetl.engine.wal.pgoutput import (
    Begin,
    Commit,
    Keepalive,
    Message,
    Relation,
    RelationColumn,
    TruncateMessage,
)
from airflow_provider_pgetl.testing.builders import ABSENT, Wire
from tests.engine.wal.control_messages import encode

COLUMNS = tuple(Column(name, PgType(25, "text"), "text") for name in ("id", "note"))
KEYED = TableSchema(TableName("public", "t"), 7, COLUMNS, ("id",))
BAG = TableSchema(TableName("public", "bag"), 8, COLUMNS, (), "full")


class Played:
    """Sends some lots of messages, and then nothing but where it is."""

    sender_timeout = None
    confirmed = START

    def __init__(self, *lots: Sequence[bytes | Message]) -> None:
        self.lots = list(lots)
        self.feedback: set[Boundary] = set()

    def receive(self, timeout: float) -> list[bytes]:
        del timeout
        lot = self.lots.pop(0)
        return [one if isinstance(one, bytes) else encode(one) for one in lot]

    def send_feedback(self, boundary: Boundary, *, reply_requested: bool = False) -> None:
        del reply_requested
        self.feedback.add(boundary)


def described(schema: TableSchema, *names: str) -> Relation:
    columns = tuple(RelationColumn(name, 25, -1, name in schema.key) for name in names or schema.names)
    return Relation(schema.relation, schema.table, schema.identity, columns)


def transaction(at: int, *messages: bytes | Message) -> list[bytes | Message]:
    """Its end is where the next may commit."""
    return [Begin(CommitLsn(at), 0, 1), *messages, Commit(CommitLsn(at), Boundary(at + 10), 0)]


def changes(wire: Wire) -> list[bytes]:
    messages, wire._messages = wire._messages, []
    return messages


def read(*lots: Sequence[bytes | Message], after: int = 100, before: int = 200, **options: Any) -> dict[str, Changed]:
    windows = [Window(schema, Boundary(after), Boundary(before)) for schema in (KEYED, BAG)]
    keys = ChangedKeys(windows, Boundary(after))
    played = Played(*lots)
    keys.read(played, lambda: False)  # type: ignore[arg-type]  # what it uses of a stream
    assert played.feedback <= {START}, "nothing is ever confirmed"
    return {table.name: changed for table, changed in keys.found.items()}


def keys_of(changed: Changed) -> set[tuple[bytes | None, ...]]:
    assert not changed.whole
    return {tuple(row.values()) for row in changed.keys.to_pylist()}


def at(position: int) -> Keepalive:
    return Keepalive(Boundary(position), 0, False)


def test_keys_before_and_after_a_change_are_told() -> None:
    wire = Wire(KEYED)
    wire.insert([b"1", b"a"]).update([b"2", b"b"]).update([b"4", ABSENT], old=[b"3", b"c"]).delete([b"5", None])
    found = read(transaction(120, described(KEYED), *changes(wire)), [at(200)])
    assert keys_of(found["t"]) == {(b"1",), (b"2",), (b"3",), (b"4",), (b"5",)}
    assert not found["bag"].any


def test_a_window_begins_at_its_first_boundary_and_ends_before_its_last() -> None:
    """The transaction that commits where another ends lies behind that end: it is not in what ends there."""
    lot: list[bytes | Message] = []  # taken in at once, also what comes after the last boundary
    for position in (90, 99, 100, 150, 199, 200, 250):
        lot += transaction(position, described(KEYED), *changes(Wire(KEYED).insert([b"%d" % position, None])))
    found = read(lot)
    assert keys_of(found["t"]) == {(b"100",), (b"150",), (b"199",)}


def test_reading_ends_where_the_last_window_does() -> None:
    inside = transaction(189, described(KEYED), *changes(Wire(KEYED).insert([b"1", None])))
    begun = [Begin(CommitLsn(300), 0, 1), *changes(Wire(KEYED).insert([b"2", None]))]
    assert keys_of(read(inside, [at(199)], [at(200), *begun])["t"]) == {(b"1",)}
    assert keys_of(read([*transaction(190, described(KEYED), *changes(Wire(KEYED).insert([b"1", None]))), *begun])["t"])


def test_a_keepalive_within_a_transaction_is_no_end_of_it() -> None:
    begun = [Begin(CommitLsn(150), 0, 1), described(KEYED), *changes(Wire(KEYED).insert([b"1", None])), at(210)]
    ended = [*changes(Wire(KEYED).insert([b"2", None])), Commit(CommitLsn(150), Boundary(160), 0)]
    assert keys_of(read(begun, ended, [at(210)])["t"]) == {(b"1",), (b"2",)}


def test_of_a_bag_whole_rows_are_told() -> None:
    wire = Wire(BAG)
    wire.update([b"1", b"new"], old=[b"1", b"old"]).delete([b"2", None])
    found = read(transaction(120, described(BAG), *changes(wire)), [at(200)])
    assert keys_of(found["bag"]) == {(b"1", b"old"), (b"1", b"new"), (b"2", None)}


@pytest.mark.parametrize(
    "messages",
    [
        [described(KEYED), TruncateMessage((7,), False, False)],
        [described(KEYED, "id", "note", "more"), *changes(Wire(KEYED).insert([b"1", None]))],
        [described(KEYED), *changes(Wire(KEYED).insert([b"1", ABSENT]))],
    ],
    ids=["truncated", "altered", "without a value"],
)
def test_what_cannot_be_told_by_key_is_the_whole_table(messages: list[bytes | Message]) -> None:
    found = read(transaction(120, *messages), [at(200)])
    assert (found["t"].whole, found["bag"].any) == (True, False)


def test_too_many_keys_are_the_whole_table_and_the_same_again_and_again_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_rows, "KEYS_AT_MOST", 20)
    wire = Wire(KEYED)
    for number in range(100):
        wire.insert([b"%d" % (number % 4), None])
    same = [transaction(110 + number, described(KEYED), message) for number, message in enumerate(changes(wire)[:80])]
    assert len(keys_of(read(*same, [at(200)])["t"])) == 4
    for number in range(30):
        wire.insert([b"%d" % number, None])
    many = transaction(120, described(KEYED), *changes(wire))
    assert read(many, [at(200)])["t"].whole
