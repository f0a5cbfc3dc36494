"""What the event trigger describes, in the terms in which the catalog is read."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.source.alterations import Altered, Unclear, plan
from airflow_provider_pgetl.engine.source.ddl_trigger import DescribedColumn, DescribedTable
from airflow_provider_pgetl.engine.source.described_tables import Description
from airflow_provider_pgetl.engine.source.drift import differences

SMALL, INT, LONG, TEXT = PgType(21, "smallint"), PgType(23, "integer"), PgType(20, "bigint"), PgType(25, "text")
REAL, DOUBLE = PgType(700, "real"), PgType(701, "double precision")
ID, NOTE = Column("id", INT, "integer", number=1), Column("note", TEXT, "text", number=2)
COPIED = TableSchema(TableName("public", "t"), 7, (ID, NOTE), ("id",), files=((7, 70),))


def described(one: Column, missing: str | None = None) -> DescribedColumn:
    return DescribedColumn(
        one.number, one.name, one.type.oid, one.modifier, one.sql_type, one.not_null, "s" if one.generated else "",
        one.identity, None, missing is not None, missing, None,
    )  # fmt: skip


def table(
    *columns: DescribedColumn, identity: str = "d", key: tuple[int, ...] = (1,), file: int = 71
) -> DescribedTable:
    return DescribedTable(7, "public", "t", "r", identity, file, None, (), key, columns)


def planned(schema: TableSchema, one: DescribedTable, rewritten: dict[int, bool] | None = None) -> Altered | Unclear:
    description = Description(one, (), rewritten or {})
    present = description.present(schema, {kind.oid: kind for kind in (SMALL, INT, LONG, TEXT, REAL, DOUBLE)})
    assert present is not None
    found = plan(schema, description.published(schema, None), present)
    assert isinstance(found, Altered | Unclear)
    return found


def test_a_table_that_is_described_as_it_was_does_not_differ() -> None:
    for identity, schema in (
        ("d", COPIED),
        ("f", replace(COPIED, identity="full")),
        ("i", replace(COPIED, identity="index", key=("note",))),
        ("n", replace(COPIED, identity="nothing", key=())),
    ):
        same = Description(table(described(ID), described(NOTE), identity=identity), (), {})
        assert differences(schema, same.published(schema, None)) == [], identity
    another = Description(table(described(ID), described(NOTE), key=(2,)), (), {})
    assert differences(COPIED, another.published(COPIED, None)) == ["its replica identity was (id) and is (note)"]


def test_what_a_publication_leaves_out_is_not_sent() -> None:
    more = replace(NOTE, name="more", number=3)
    computed = replace(NOTE, name="computed", number=4, generated=True)
    one = Description(table(*map(described, (ID, NOTE, more, computed))), (), {})
    assert list(one.published(COPIED, None).columns) == ["id", "note", "more"]
    assert list(one.published(COPIED, frozenset(("id", "note"))).columns) == ["id", "note"]
    sent = replace(COPIED, columns=(ID, NOTE, computed))
    assert list(one.published(sent, None).columns) == ["id", "note", "more", "computed"]


def test_a_description_tells_what_the_catalog_would_leave_open() -> None:
    more = replace(NOTE, name="more", number=3)
    found = planned(COPIED, table(described(ID), described(replace(NOTE, name="word")), described(more, "x")))
    word = replace(NOTE, name="word")
    assert found == Altered(replace(COPIED, columns=(ID, word, replace(more, missing="x"))))
    assert planned(COPIED, table(described(ID))) == Altered(replace(COPIED, columns=(ID,)))


def test_a_type_is_widened_if_rows_were_only_cast() -> None:
    long = replace(ID, type=LONG, sql_type="bigint")
    one = table(described(long), described(NOTE))
    assert planned(COPIED, one, {7: True}) == Altered(replace(COPIED, columns=(long, NOTE)))
    assert isinstance(planned(COPIED, one, {7: False}), Unclear)
    assert Description(one, (), {7: True}).files(COPIED) == ((7, 71),)
    assert Description(one, (), {}).files(COPIED) == COPIED.files
    small = table(described(replace(ID, type=SMALL, sql_type="smallint")), described(NOTE))
    assert isinstance(planned(COPIED, small, {7: True}), Unclear), "it may have failed to hold them, or rounded"
    real = replace(NOTE, type=REAL, sql_type="real", missing="0.1")
    wide = planned(
        replace(COPIED, columns=(ID, real)),
        table(described(ID), described(replace(real, type=DOUBLE, sql_type="double precision"))),
        {7: True},
    )
    assert isinstance(wide, Altered)
    assert wide.schema.columns[1].missing == "0.10000000149011612"


def test_rows_that_were_written_anew_beside_an_added_column() -> None:
    more = replace(NOTE, name="more", number=3)
    one = table(described(ID), described(NOTE), described(more))
    assert planned(COPIED, one) == Altered(replace(COPIED, columns=(ID, NOTE, more)))
    assert isinstance(planned(COPIED, one, {7: True}), Unclear), "its default may be volatile"


def test_partitions_and_types_that_are_gone() -> None:
    schema = replace(COPIED, files=((8, 80), (9, 90)))
    long = described(replace(ID, type=LONG, sql_type="bigint"))
    root = replace(table(long, described(NOTE)), kind="p", filenode=None)
    leaves = [replace(table(long, described(NOTE), file=oid * 10 + 1), oid=oid, ancestors=(7,)) for oid in (8, 9)]
    both = Description(root, leaves, {8: True, 9: True})
    assert both.casts
    assert both.files(schema) == ((8, 81), (9, 91))
    assert not Description(root, leaves, {8: True, 9: False}).casts
    assert not Description(root, leaves, {10: False}).is_rewritten, "another table's"
    assert both.types(schema) == {LONG.oid}
    assert both.present(schema, {}) is None
