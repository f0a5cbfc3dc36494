"""Rows of an earlier version of a schema, as rows of a later one."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from airflow_provider_pgetl.engine.changes.batch import WireRows, wire_rows
from airflow_provider_pgetl.engine.changes.versions import converted, passed_on
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.model.widening import widened_text
from tests.engine.changes import pgoutput

INT, TEXT = PgType(23, "integer"), PgType(25, "text")
ID, NOTE = Column("id", INT, "integer", number=1), Column("note", TEXT, "text", number=2)
BEFORE = TableSchema(TableName("public", "t"), 7, (ID, NOTE), ("id",))
FIVE, NOTHING = Column("five", INT, "integer", number=4, missing="5"), Column("nothing", TEXT, "text", number=3)
AFTER = replace(BEFORE, columns=(ID, NOTE, NOTHING, FIVE))


def rows(schema: TableSchema, *messages: bytes) -> WireRows:
    return wire_rows(schema, messages, [(0, 10, 100), (1, 20, 200)], range(1, len(messages) + 1))


def test_what_a_row_lacks_is_what_existing_rows_have() -> None:
    before = rows(
        BEFORE,
        pgoutput.insert(7, [b"1", b"one"]),
        pgoutput.update(7, [b"2", pgoutput.ABSENT]),
        pgoutput.update(7, [b"3", None], key=[b"2", None]),
        pgoutput.delete(7, key=[b"3", None]),
        pgoutput.insert(7, [b"4", b""], kind=b"b"),
    )
    after = converted(before, AFTER)
    assert after.schema == AFTER
    assert [change.new for change in after.changes()] == [
        {"id": b"1", "note": b"one", "nothing": None, "five": b"5"},
        {"id": b"2", "nothing": None, "five": b"5"},
        {"id": b"3", "note": None, "nothing": None, "five": b"5"},
        None,
        {"id": b"4", "note": b"", "nothing": None, "five": b"5"},
    ]
    assert [change.old for change in after.changes()] == [None, None, {"id": b"2"}, {"id": b"3"}, None]
    for name in ("commit_lsns", "ordinals", "commit_times"):
        assert getattr(after, name).tolist() == getattr(before, name).tolist()


def test_whole_old_rows_have_it_too() -> None:
    full = replace(BEFORE, key=(), identity="full")
    before = rows(full, pgoutput.update(7, [b"1", b"new"], old=[b"1", b"old"]), pgoutput.delete(7, old=[b"2", None]))
    after = converted(before, replace(AFTER, key=(), identity="full"))
    assert [change.old for change in after.changes()] == [
        {"id": b"1", "note": b"old", "nothing": None, "five": b"5"},
        {"id": b"2", "note": None, "nothing": None, "five": b"5"},
    ]


def test_the_number_tells_which_column_is_which() -> None:
    renamed = replace(NOTE, name="remark")
    another = replace(NOTE, number=5, missing="again")
    after = replace(BEFORE, columns=(ID, renamed, another))
    (change,) = converted(rows(BEFORE, pgoutput.insert(7, [b"1", b"one"])), after).changes()
    assert change.new == {"id": b"1", "remark": b"one", "note": b"again"}
    (change,) = converted(
        rows(after, pgoutput.insert(7, [b"1", b"one", b"x"])), replace(BEFORE, columns=(ID,))
    ).changes()
    assert change.new == {"id": b"1"}


def test_where_columns_are_the_same_rows_are_not_touched() -> None:
    before = rows(BEFORE, pgoutput.insert(7, [b"1", b"one"]))
    assert converted(before, replace(BEFORE, comment="other")).buffer is before.buffer


def test_a_name_passes_to_another_column_where_the_former_one_is_gone() -> None:
    dropped, again = replace(BEFORE, columns=(ID,)), replace(BEFORE, columns=(ID, replace(NOTE, number=3)))
    why = "note was dropped and added again"
    assert passed_on((BEFORE, again), {"id", "note"}) == why
    assert passed_on((BEFORE, dropped, again), {"id", "note"}) == why, "it was kept, or is not dropped yet"
    assert passed_on((BEFORE, dropped, again), {"id"}) is None
    more = replace(again, columns=(*again.columns, FIVE))
    assert passed_on((BEFORE, dropped, again, more), {"id", "note"}) is None, "it has the later one"
    renamed = replace(BEFORE, columns=(ID, replace(NOTE, name="remark")))
    both = replace(renamed, columns=(*renamed.columns, replace(NOTE, number=3)))
    assert passed_on((BEFORE, renamed, both), {"id", "note"}) == why
    assert passed_on((BEFORE, renamed, both), {"id", "remark"}) is None
    assert passed_on((BEFORE, AFTER), {"id", "note", "five"}) is None, "somebody has added it before"


@pytest.mark.parametrize(
    ("kinds", "form", "sent", "wanted"),
    [
        ((21, 20), b"b", b"\xff\xfe", b"\xff\xff\xff\xff\xff\xff\xff\xfe"),
        ((23, 20), b"b", b"\x7f\xff\xff\xff", b"\x00\x00\x00\x00\x7f\xff\xff\xff"),
        ((21, 23), b"b", b"\x00\x07", b"\x00\x00\x00\x07"),
        ((23, 20), b"t", b"-7", b"-7"),
        ((700, 701), b"b", struct.pack("!f", 0.1), struct.pack("!d", 0.10000000149011612)),
        ((700, 701), b"t", b"0.1", b"0.10000000149011612"),
        ((700, 701), b"t", b"-Infinity", b"-Infinity"),
        ((700, 701), b"t", b"NaN", b"NaN"),
        ((1043, 25), b"b", b"same", b"same"),
        ((23, 20), b"t", None, None),
    ],
)
def test_values_of_a_type_that_was_widened(
    kinds: tuple[int, int], form: bytes, sent: bytes | None, wanted: bytes | None
) -> None:
    before, after = (replace(BEFORE, columns=(NOTE, replace(ID, type=PgType(oid, "x"))), key=()) for oid in kinds)
    message = pgoutput.insert(7, [b"x", sent], kind=form)
    (change,) = converted(rows(before, message), after).changes()
    assert change.new == {"note": b"x", "id": wanted}


def test_the_value_of_existing_rows_is_widened_as_they_are() -> None:
    real, double = (replace(ID, type=PgType(oid, "x")) for oid in (700, 701))
    assert widened_text("0.1", real, double) == "0.10000000149011612"
    assert widened_text("0.1", double, double) == "0.1"
