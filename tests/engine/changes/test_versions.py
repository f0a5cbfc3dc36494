"""Rows of an earlier version of a schema, as rows of a later one."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_pgetl.engine.changes.batch import WireRows, wire_rows
from airflow_provider_pgetl.engine.changes.versions import converted
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
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
