"""What an ALTER means: told from the RELATION message, and from the catalog as far as that agrees with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.source.alterations import (
    Altered,
    HeldRows,
    Missing,
    NotYetVisible,
    PresentTable,
    Unclear,
    loosened,
    plan,
    read_present_table,
)
from airflow_provider_pgetl.engine.source.connecting import connect
from airflow_provider_pgetl.engine.source.drift import ColumnForm, PublishedDescription, described
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


def added(schema: TableSchema, given: PublishedDescription, there: PresentTable | None) -> list[tuple[str, str | None]]:
    found = plan(schema, given, there)
    assert isinstance(found, Altered), found
    count = len(schema.columns)
    assert found.schema.columns[:count] == schema.columns
    assert not any(one.not_null for one in found.schema.columns[count:])
    return [(one.name, one.missing) for one in found.schema.columns[count:]]


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
    "added and dropped": (now(more=SENT), present(ID, replace(NOTE, name="word")), "more has been altered since"),
    "added and retyped": (now(more=SENT), present(ID, NOTE, replace(MORE, type=TEXT)), "more has been altered since"),
    "of another length": (now(more=SENT), present(ID, NOTE, replace(MORE, modifier=9)), "more has been altered since"),
    "there before": (
        now(more=SENT),
        present(replace(ID, number=2), replace(NOTE, number=3), replace(MORE, number=1)),
        "altered since",
    ),
    "computed": (now(more=SENT), present(ID, NOTE, replace(MORE, generated=True)), "more is computed"),
}


@pytest.mark.parametrize(("given", "there", "why"), UNCLEAR.values(), ids=UNCLEAR.keys())
def test_what_cannot_be_told(given: PublishedDescription, there: PresentTable | None, why: str) -> None:
    found = plan(COPIED, given, there)
    assert isinstance(found, Unclear)
    assert why in (found.why or "")


def test_a_column_that_was_only_left_out_of_the_publication_is_not_added() -> None:
    """Its place among the others does not show it where it comes last."""
    schema = replace(COPIED, columns=(ID, replace(NOTE, number=3)))
    left_out = present(ID, replace(NOTE, number=3), replace(MORE, number=2))
    found = plan(schema, now(more=SENT), left_out)
    assert isinstance(found, Unclear)


def test_what_else_differs_is_not_a_column_that_came_or_went() -> None:
    there = present(ID, NOTE, MORE)
    for other in (
        replace(now(more=SENT), identity="full", told=frozenset(("id", "note", "more"))),
        replace(now(more=SENT), told=frozenset(("id", "more"))),
    ):
        assert plan(COPIED, other, there) == Unclear()


def sent(*columns: Column) -> PublishedDescription:
    return replace(now(), columns={one.name: ColumnForm(one.type.oid, one.modifier) for one in columns})


def test_the_number_tells_a_renamed_column_from_one_that_was_dropped_beside_another_that_was_added() -> None:
    remark = replace(NOTE, name="remark", altered=9)
    found = plan(COPIED, sent(ID, remark), present(ID, remark, count=2))
    assert found == Altered(replace(COPIED, columns=(ID, remark)))
    another = replace(remark, number=3)
    found = plan(COPIED, sent(ID, another), present(ID, another))
    assert found == Altered(replace(COPIED, columns=(ID, another)))


def test_another_type_has_the_same_values_if_the_file_is_the_same() -> None:
    short = replace(NOTE, type=PgType(1043, "character varying"), sql_type="character varying(3)", modifier=7)
    longer = replace(short, sql_type="character varying(9)", modifier=13, altered=5)
    schema = replace(COPIED, columns=(ID, short))
    for after in (longer, replace(longer, type=TEXT, sql_type="text", modifier=-1), replace(longer, name="remark")):
        found = plan(schema, sent(ID, after), present(ID, after, count=2))
        assert found == Altered(replace(COPIED, columns=(ID, after)))
        assert isinstance(plan(schema, sent(ID, after), present(ID, after, count=2, file=71)), Unclear)
        retyped_again = replace(after, type=INT, modifier=-1)
        assert isinstance(plan(schema, sent(ID, after), present(ID, retyped_again, count=2)), Unclear)


def test_a_renamed_key_stays_the_key() -> None:
    number = replace(ID, name="number")
    described_now = replace(sent(number, NOTE), told=frozenset(("number",)), key=None)
    found = plan(COPIED, described_now, present(number, NOTE, count=2))
    assert found == Altered(replace(COPIED, columns=(number, NOTE), key=("number",)))
    assert plan(COPIED, replace(described_now, told=frozenset(("note",))), present(number, NOTE, count=2)) == Unclear()


def test_a_dropped_column() -> None:
    assert plan(COPIED, sent(ID), present(ID)) == Altered(replace(COPIED, columns=(ID,)))
    assert plan(COPIED, sent(ID), present(ID, NOTE)) == NotYetVisible()
    assert plan(COPIED, replace(sent(NOTE), told=frozenset()), present(NOTE)) == Unclear("id identified the rows")
    unknown = replace(COPIED, columns=(replace(ID, number=0), replace(NOTE, number=0)))
    assert plan(unknown, sent(ID), present(ID)) == Unclear("it is not known which columns they were")


def test_what_was_altered_again_before_it_was_read_is_known_by_its_place() -> None:
    remark = replace(NOTE, name="remark")
    renamed = Altered(replace(COPIED, columns=(ID, remark)))
    assert plan(COPIED, sent(ID, remark), present(ID, replace(NOTE, name="word"), count=2)) == renamed
    assert plan(COPIED, sent(ID, remark), present(ID, count=2)) == renamed
    assert plan(COPIED, sent(ID, remark), present(ID, count=3)) == Unclear("remark has been altered since as well")
    again = replace(NOTE, number=4)
    assert added(COPIED, now(more=SENT), present(ID, again, MORE, count=4)) == [("more", None)]
    found = plan(COPIED, sent(ID, MORE, again), present(ID, again, replace(MORE, not_null=False), count=4))
    assert found == Altered(replace(COPIED, columns=(ID, replace(MORE, not_null=False), again)))
    later = replace(MORE, name="later")
    assert added(COPIED, now(more=SENT), present(ID, replace(NOTE, name="word"), later)) == [("more", None)]
    last = replace(MORE, name="last", number=4)
    assert added(COPIED, now(more=SENT), present(ID, NOTE, later, last, count=4)) == [("more", None)]
    three = replace(COPIED, columns=(ID, NOTE, MORE))
    assert plan(three, sent(ID, MORE), present(ID)) == Altered(replace(COPIED, columns=(ID, MORE)))
    assert isinstance(plan(three, sent(ID, MORE), present(ID, last, count=4)), Unclear), (
        "it may be another of that name"
    )
    assert isinstance(plan(COPIED, sent(ID, MORE), present(ID, replace(later, type=TEXT))), Unclear)
    assert isinstance(plan(COPIED, sent(ID, MORE), present(ID, later)), Unclear), "note may have become more"


X = Column("x", INT, "integer", number=3, altered=50)


def test_a_name_proves_nothing_once_the_column_was_altered_after_the_row() -> None:
    """Another column may have had it: one that was added and dropped since, or one that was renamed."""
    again = replace(X, number=4, altered=60)
    early = present(ID, NOTE, again, count=4, x=Missing(True, "7"))
    assert isinstance(plan(COPIED, now(x=SENT), early, xid=55), Unclear), "the row is of the first x"
    assert added(COPIED, now(x=SENT), early) == [("x", "7")]
    late = plan(COPIED, now(x=SENT), early, xid=70)
    assert isinstance(late, Altered)
    text = replace(X, type=TEXT, sql_type="text", altered=60)
    renamed = sent(ID, replace(NOTE, name="x"))
    assert isinstance(plan(COPIED, renamed, present(ID, text), xid=55), Unclear), "note was called x"
    assert isinstance(plan(COPIED, renamed, present(ID, text), xid=65), Altered)
    assert isinstance(plan(COPIED, renamed, present(ID, text), xid=60), Altered), "of the very transaction"
    wrapped = present(ID, replace(text, altered=(1 << 32) - 5))
    assert isinstance(plan(COPIED, renamed, wrapped, xid=7), Altered), "the counter has begun anew"


def test_a_column_that_was_altered_after_the_row_is_known_by_its_place() -> None:
    strict = replace(X, not_null=True, altered=60)
    found = plan(COPIED, now(x=SENT), present(ID, NOTE, strict, x=Missing(True, "5")), xid=55)
    assert isinstance(found, Altered)
    assert (found.schema.columns[2].name, found.schema.columns[2].missing) == ("x", "5")


def test_what_the_table_had_and_was_not_sent_is_not_added() -> None:
    """A column that was computed, or that the publication's list left out."""
    schema = replace(COPIED, attributes=3)
    assert plan(schema, now(more=SENT), present(ID, NOTE, MORE)) == Unclear("more was there before, and not sent")
    another = replace(MORE, number=4)
    found = plan(schema, now(more=SENT), present(ID, NOTE, another, count=4))
    assert isinstance(found, Altered)
    assert found.schema.attributes == 4


def test_where_rows_were_written_to_a_new_file_every_column_that_was_altered_may_have_others() -> None:
    remark = replace(NOTE, name="remark", altered=9)
    found = plan(COPIED, sent(ID, remark), present(ID, remark, count=2, file=71))
    assert isinstance(found, Unclear)
    assert "in note may be other values" in (found.why or "")
    kept = present(ID, replace(NOTE, altered=0), replace(X, altered=60), file=71, x=Missing(True, "5"))
    assert added(COPIED, now(x=SENT), kept) == [("x", "5")], "VACUUM FULL alters no column"


def test_rows_that_were_streamed_into_a_new_leaf_have_what_the_others_have() -> None:
    x = Missing(True, "5")

    def leaves(**more: HeldRows) -> PresentTable:
        return PresentTable({"id": ID, "note": NOTE, "x": X}, 3, {int(oid[1:]): rows for oid, rows in more.items()})

    gone = leaves(_8=HeldRows(80, {"x": x}))
    assert added(COPIED, now(x=SENT), gone) == [("x", "5")], "the leaf of the last look was dropped"
    assert added(COPIED, now(x=SENT), leaves(_7=HeldRows(70, {"x": x}), _8=HeldRows(80))) == [("x", "5")]
    assert added(COPIED, now(x=SENT), leaves(_7=HeldRows(70), _8=HeldRows(80))) == [("x", None)]
    assert isinstance(plan(COPIED, now(x=SENT), leaves(_8=HeldRows(80))), Unclear), "a default may have been written"


def test_a_type_that_writes_values_otherwise_is_another_even_in_the_same_file() -> None:
    cidr = replace(NOTE, type=PgType(650, "cidr"), sql_type="cidr")
    inet = replace(NOTE, type=PgType(869, "inet"), sql_type="inet", altered=4)
    schema = replace(COPIED, columns=(ID, cidr))
    assert isinstance(plan(schema, sent(ID, inet), present(ID, inet, count=2)), Unclear)


def test_a_column_that_has_become_nullable_is_so_in_the_next_version() -> None:
    strict = replace(COPIED, columns=(replace(ID, not_null=True), replace(NOTE, not_null=True)))
    found = plan(strict, now(more=SENT), present(ID, NOTE, MORE))
    assert isinstance(found, Altered)
    assert [one.not_null for one in found.schema.columns] == [True, False, False], "the key stays as it is"
    assert loosened(strict, {"more"}) == strict


def test_under_replica_identity_full_all_columns_identify_a_row() -> None:
    schema = replace(COPIED, identity="full", key=())
    full = replace(now(more=SENT), identity="full", told=frozenset(("id", "note", "more")), key=None)
    assert added(schema, full, present(ID, NOTE, MORE)) == [("more", None)]


def test_a_commit_that_is_not_visible_yet() -> None:
    assert plan(COPIED, now(more=SENT), present(ID, NOTE, count=2)) == NotYetVisible()
    assert plan(COPIED, sent(ID, replace(NOTE, name="remark")), present(ID, NOTE, count=2)) == NotYetVisible()
    retyped = replace(NOTE, type=INT, sql_type="integer")
    assert plan(COPIED, sent(ID, retyped), present(ID, NOTE, count=2)) == NotYetVisible()
    later = replace(MORE, name="later")
    assert added(COPIED, now(more=SENT), present(ID, NOTE, later)) == [("more", None)]


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
