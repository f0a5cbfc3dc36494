"""What an ALTER means: told from the RELATION message, and from the catalog as far as that agrees with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.source.connecting import connect
from airflow_provider_pgetl.engine.source.drift import ColumnForm, PublishedDescription, described
from airflow_provider_pgetl.engine.source.schema_changes import (
    AddColumns,
    HeldRows,
    Missing,
    NotYetVisible,
    PresentTable,
    Unclear,
    plan,
    read_present_table,
)
from airflow_provider_pgetl.testing.servers.postgres_servers import Database, Server

INT, TEXT = PgType(23, "integer"), PgType(25, "text")
ID, NOTE = Column("id", INT, "integer", number=1), Column("note", TEXT, "text", number=2)
COPIED = TableSchema(TableName("public", "t"), 7, (ID, NOTE), ("id",), files=((7, 70),))
MORE = Column("more", INT, "integer", not_null=True, number=3)
SENT = ColumnForm(23, -1)


def now(**more: ColumnForm) -> PublishedDescription:
    columns = {one.name: ColumnForm(one.type.oid, one.modifier) for one in COPIED.columns}
    return replace(described(COPIED), columns={**columns, **more})


def present(*columns: Column, count: int = 3, file: int = 70, **missing: Missing) -> PresentTable:
    return PresentTable({one.name: one for one in columns}, count, {7: HeldRows(file, missing)})


def added(schema: TableSchema, sent: PublishedDescription, there: PresentTable | None) -> list[tuple[str, str | None]]:
    found = plan(schema, sent, there)
    assert isinstance(found, AddColumns), found
    assert found.schema.columns == (*schema.columns, *found.added)
    assert not any(one.not_null for one in found.added)
    return [(one.name, one.missing) for one in found.added]


def test_an_added_column_has_in_existing_rows_what_the_catalog_says() -> None:
    assert added(COPIED, now(more=SENT), present(ID, NOTE, MORE)) == [("more", None)]
    known = Missing(known=True, value="5")
    assert added(COPIED, now(more=SENT), present(ID, NOTE, MORE, more=known)) == [("more", "5")]
    assert added(COPIED, now(more=SENT), present(ID, NOTE, MORE, file=71, more=known)) == [("more", "5")]


def test_later_alters_that_show_in_the_catalog_already_change_nothing() -> None:
    later = replace(MORE, name="later", number=4)
    assert added(COPIED, now(more=SENT), present(ID, NOTE, MORE, later, count=4)) == [("more", None)]
    retyped = replace(NOTE, type=INT, sql_type="integer")
    assert added(COPIED, now(more=SENT), present(ID, retyped, MORE)) == [("more", None)]


UNCLEAR = {
    "written to a new file": (now(more=SENT), present(ID, NOTE, MORE, file=71), "what existing rows have in more"),
    "dropped": (now(more=SENT), None, "does not exist any more"),
    "added and dropped": (now(more=SENT), present(ID, NOTE), "more has been altered since"),
    "added and retyped": (now(more=SENT), present(ID, NOTE, replace(MORE, type=TEXT)), "more has been altered since"),
    "of another length": (now(more=SENT), present(ID, NOTE, replace(MORE, modifier=9)), "more has been altered since"),
    "dropped and added": (
        now(more=SENT),
        present(ID, replace(NOTE, number=4), MORE, count=4),
        "note has been altered since",
    ),
    "there before": (
        now(more=SENT),
        present(replace(ID, number=2), replace(NOTE, number=3), replace(MORE, number=1)),
        "altered since",
    ),
    "computed": (now(more=SENT), present(ID, NOTE, replace(MORE, generated=True)), "more is computed"),
}


@pytest.mark.parametrize(("sent", "there", "why"), UNCLEAR.values(), ids=UNCLEAR.keys())
def test_what_cannot_be_told(sent: PublishedDescription, there: PresentTable | None, why: str) -> None:
    found = plan(COPIED, sent, there)
    assert isinstance(found, Unclear)
    assert why in (found.why or "")


def test_a_column_that_was_only_left_out_of_the_publication_is_not_added() -> None:
    """Its place among the others does not show it where it comes last."""
    schema = replace(COPIED, columns=(ID, replace(NOTE, number=3)))
    left_out = present(ID, replace(NOTE, number=3), replace(MORE, number=2))
    found = plan(schema, now(more=SENT), left_out)
    assert isinstance(found, Unclear)


def test_what_else_differs_is_not_an_added_column() -> None:
    there = present(ID, NOTE, MORE)
    for other in (
        replace(now(more=SENT), identity="full", told=frozenset(("id", "note", "more"))),
        replace(now(more=SENT), columns={**now().columns, "note": ColumnForm(23, -1), "more": SENT}),
        replace(now(more=SENT), columns={"more": SENT, **now().columns}),
        replace(now(more=SENT), told=frozenset(("id", "more"))),
    ):
        assert plan(COPIED, other, there) == Unclear()


def test_under_replica_identity_full_all_columns_identify_a_row() -> None:
    schema = replace(COPIED, identity="full", key=())
    sent = replace(now(more=SENT), identity="full", told=frozenset(("id", "note", "more")), key=None)
    assert added(schema, sent, present(ID, NOTE, MORE)) == [("more", None)]


def test_a_commit_that_is_not_visible_yet() -> None:
    assert plan(COPIED, now(more=SENT), present(ID, NOTE, count=2)) == NotYetVisible()


def test_leaves_must_agree() -> None:
    schema = replace(COPIED, files=((8, 80), (9, 90)))
    known = HeldRows(80, {"more": Missing(known=True, value="5")})
    both = {8: known, 9: replace(known, file=91), 10: HeldRows(100)}
    assert added(schema, now(more=SENT), replace(present(ID, NOTE, MORE), leaves=both)) == [("more", "5")]
    differing = {**both, 9: HeldRows(90, {"more": Missing(known=True, value="6")})}
    assert isinstance(plan(schema, now(more=SENT), replace(present(ID, NOTE, MORE), leaves=differing)), Unclear)
    assert added(replace(COPIED, files=()), now(more=SENT), replace(present(ID, NOTE, MORE), leaves={})) == [
        ("more", None)
    ]


@pytest.mark.servers
def test_what_the_catalog_says_of_existing_rows(source: Database, source_server: Server) -> None:
    del source_server
    source.execute("create table t (id int primary key); insert into t values (1)")
    source.execute("alter table t add a int, add b text default 'it''s {b}', add c int[] default '{1,null}'")
    source.execute("alter table t add d box default '(1,1),(0,0)', add e text default '', add gone int default 1")
    source.execute("alter table t drop gone")
    ((oid,),) = source.execute("select 't'::regclass::oid")
    with connect(source.uri, "test") as connection:
        found = read_present_table(connection, int(str(oid)))
        assert found is not None
        assert list(found.columns) == ["id", "a", "b", "c", "d", "e"]
        assert found.count == 7
        (held,) = found.leaves.values()
        assert {name: one.value for name, one in held.missing.items() if one.known} == {
            "b": "it's {b}", "c": "{1,NULL}", "d": "(1,1),(0,0)", "e": "",
        }  # fmt: skip
        source.execute("alter table t add f uuid default gen_random_uuid()")
        after = read_present_table(connection, int(str(oid)))
        assert after is not None
        (anew,) = after.leaves.values()
        assert anew.file != held.file
        assert not any(one.known for one in anew.missing.values())
        assert read_present_table(connection, 1) is None
