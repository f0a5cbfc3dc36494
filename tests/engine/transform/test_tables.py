"""The rows of a stream and of a copy are transformed alike: keys, old rows, values that were not sent again."""

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.changes.batch import WireRows
from airflow_provider_pgetl.engine.config.spec import (
    DestinationSpec,
    PipelineSpec,
    SourceSpec,
    TableSpec,
    TransformSpec,
)
from airflow_provider_pgetl.engine.config.spec import TransformationSpec as Settings
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import Column, Identity, TableName, TableSchema
from airflow_provider_pgetl.engine.transform.keyed import Keys
from airflow_provider_pgetl.engine.transform.rules import rules_of
from airflow_provider_pgetl.engine.transform.tables import TableTransform, Transforms
from airflow_provider_pgetl.testing.builders import ABSENT, Row, Wire
from tests.engine.transform.columns import column

TABLE = TableName("public", "people")
KEYS = Keys({"env:KEY": "a key of the tests, long enough"})


def schema(key: tuple[str, ...] = ("id",), identity: Identity = "default", *columns: Column) -> TableSchema:
    found = columns or (
        column("bigint", "id", not_null=True),
        column("text", "name"),
        column("text", "bio"),
        column("text", "note"),
    )
    return TableSchema(TABLE, 7, found, key, identity)


def spec(*rules: TransformSpec, mode: str = "listed") -> PipelineSpec:
    return PipelineSpec(
        "shop",
        (TableSpec("public.*"),),
        SourceSpec("env:SOURCE"),
        DestinationSpec("memory"),
        transform=rules,
        transformation=Settings(mode, "env:KEY"),  # type: ignore[arg-type]
    )


RULES = (
    TransformSpec("id", "integer"),
    TransformSpec("name", "hash", options={"length": 8}),
    TransformSpec("bio", "mask"),
)


def transform(of: TableSchema, *rules: TransformSpec) -> TableTransform:
    found = rules_of(spec(*(rules or RULES)), TABLE, of)
    assert found is not None
    return TableTransform(found, KEYS)


def copied(of: TableSchema, row: Row, *rules: TransformSpec) -> list[bytes | None]:
    """Returns the row as the copy path transforms it."""
    arrays = [pa.array([value if isinstance(value, bytes) else None], pa.binary()) for value in row]
    return [one[0].as_py() for one in transform(of, *rules).arrays(arrays)]


def seen(rows: WireRows) -> list[tuple[str, dict[str, bytes | None] | None, dict[str, bytes | None] | None]]:
    return [
        (one.kind.value, None if one.old is None else dict(one.old), None if one.new is None else dict(one.new))
        for one in rows.changes()
    ]


def test_insert_update_and_delete() -> None:
    of = schema()
    before: Row = [b"1", b"Ada", b"long", None]
    after: Row = [b"2", b"Bob", b"", b"new"]
    wire = Wire(of).insert(before).update(after, before).delete(after)
    rows = transform(of).rows(wire.take())
    first, second = copied(of, before), copied(of, after)
    names = of.names
    assert seen(rows) == [
        ("insert", None, dict(zip(names, first, strict=True))),
        ("update", {"id": first[0]}, dict(zip(names, second, strict=True))),
        ("delete", {"id": second[0]}, None),
    ]
    assert first[0] != b"1"
    assert first[2] == b"****"


def test_nothing_of_the_values_is_left_in_the_buffer() -> None:
    of = schema(identity="full")
    row: Row = [b"1", b"canary", b"canary", b"kept"]
    rows = transform(of).rows(Wire(of).insert(row).update(row, row).delete(row).take())
    assert b"canary" not in rows.buffer.tobytes()
    assert b"kept" in rows.buffer.tobytes()


def test_a_value_that_was_not_sent_again_stays_absent() -> None:
    of = schema()
    rows = transform(of).rows(Wire(of).update([b"1", ABSENT, ABSENT, ABSENT]).take())
    assert seen(rows) == [("update", None, {"id": copied(of, [b"1", None, None, None])[0]})]


def test_a_value_that_only_the_old_row_holds_is_transformed_too() -> None:
    of = schema((), "full")
    old: Row = [b"1", b"Ada", b"long", b"x"]
    rows = transform(of).rows(Wire(of).update([b"1", b"Ada", ABSENT, b"y"], old).take())
    assert rows.new.value(2, 0) == rows.old.value(2, 0) == b"****"


def test_a_constant_fills_null_in_rows_but_not_in_old_keys() -> None:
    rule = TransformSpec("note", "constant", options={"value": "x"})
    for identity, expected in (("default", None), ("full", b"x")):
        of = schema(identity=identity)  # type: ignore[arg-type]
        row: Row = [b"1", b"Ada", b"long", None]
        rows = transform(of, rule).rows(Wire(of).insert(row).delete(row).take())
        assert rows.new.value(3, 0) == b"x"
        assert rows.old.value(3, 1) == expected


def test_a_template_reads_the_whole_row_or_refuses() -> None:
    rule = TransformSpec("note", "template", options={"template": "{{ name }}/{{ bio }}"})
    of = schema(identity="full")
    old: Row = [b"1", b"Ada", b"long", b"x"]
    rows = transform(of, rule).rows(Wire(of).update([b"1", b"Bob", ABSENT, b"x"], old).take())
    assert (rows.old.value(3, 0), rows.new.value(3, 0)) == (b"Ada/long", b"Bob/long")
    with pytest.raises(PgetlError, match=r"Column bio of public\.people, which a transformer reads") as raised:
        transform(schema(), rule).rows(Wire(schema()).update([b"1", b"Bob", ABSENT, b"x"]).take())
    assert raised.value.kind is ErrorKind.TRANSFORM


def test_binary_values_are_refused() -> None:
    of = schema()
    with pytest.raises(PgetlError, match="has come in binary"):
        transform(of).rows(Wire(of, b"b").insert([bytes(8), b"Ada", b"", b""]).take())


def test_the_value_of_existing_rows_in_an_added_column_is_transformed_once() -> None:
    added = replace(column("text", "name"), number=2, missing="Ada")
    earlier = replace(column("text", "bio"), number=3, missing="****")
    of = schema(("id",), "default", replace(column("bigint", "id"), number=1), added, earlier)
    (_, name, bio) = transform(of).version({1, 3}).columns
    assert name.missing == (copied(of, [b"1", b"Ada", None])[1] or b"").decode()
    assert bio.missing == "****"


def test_a_rule_that_reads_other_columns_cannot_tell_what_existing_rows_have() -> None:
    of = schema(("id",), "default", column("bigint", "id"), replace(column("text", "note"), number=2, missing="x"))
    rule = TransformSpec("note", "template", options={"template": "{{ id }}"})
    with pytest.raises(PgetlError, match="was added, and its rule reads other columns"):
        transform(of, rule).version({1})


def altered(before: Column, after: Column, *rules: TransformSpec) -> None:
    identified = column("bigint", "id", not_null=True)
    one, other = (schema(("id",), "default", identified, replace(each, number=2)) for each in (before, after))
    Transforms(spec(*rules), KEYS).altered(TABLE, one, other)


def test_a_column_that_is_renamed_keeps_its_rule_or_stops_the_table() -> None:
    rules = (TransformSpec("na*", "mask"), TransformSpec("note", "hash"))
    altered(column("text", "name"), column("text", "names"), *rules)
    altered(column("text", "other"), column("text", "others"), *rules)
    for before, after in (("name", "other"), ("other", "name"), ("name", "note")):
        with pytest.raises(PgetlError, match=f"{before} of public.people was renamed to {after}"):
            altered(column("text", before), column("text", after), *rules)


def test_a_column_that_is_transformed_may_not_get_another_type() -> None:
    """The same value could be transformed otherwise: cut at another length, permuted in another range."""
    for rules in ((), (TransformSpec("name", "keep"),)):
        altered(column("varchar(20)", "name"), column("varchar(64)", "name"), *rules)
    with pytest.raises(PgetlError, match="was altered from varchar"):
        altered(column("varchar(20)", "name"), column("varchar(64)", "name"), TransformSpec("name", "hash"))


values = st.one_of(st.none(), st.just(ABSENT), st.binary(max_size=30).map(lambda data: data.hex().encode()))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), identity=st.sampled_from(["default", "full"]), data=st.data())
def test_any_messages(seed: int, identity: Identity, data: st.DataObject) -> None:
    """Each value of each tuple is what the copy path makes of it, and everything else is as it was sent."""
    of, dice = schema(identity=identity), random.Random(seed)
    wire = Wire(of)
    for _ in range(data.draw(st.integers(0, 12))):
        row = [str(dice.randrange(9)).encode(), *data.draw(st.tuples(values, values, values))]
        whole = [None if value is ABSENT else value for value in row]
        old = [str(dice.randrange(9)).encode(), *whole[1:]]
        match dice.randrange(3):
            case 0:
                wire.insert(whole)
            case 1:
                wire.update(row, old if identity == "full" or dice.random() < 0.5 else None)
            case _:
                wire.delete(old)
    if not len(wire):
        return
    plain = wire.take()
    made = transform(of).rows(plain)
    for before, after in ((plain.old, made.old), (plain.new, made.new)):
        assert np.array_equal(before.kinds, after.kinds)
        for row_ in range(len(plain)):
            sent = [before.value(at, row_) for at in range(4)]
            assert [after.value(at, row_) for at in range(4)] == copied(of, sent)
    assert np.array_equal(plain.ordinals, made.ordinals)


# -- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([TransformSpec("id", "hash")], "it is bigint"),
        ([TransformSpec("id", "integer", options={"bucket": 10})], "rows are identified by it, and its values"),
        ([TransformSpec("id", "null")], "it is NOT NULL"),
        ([TransformSpec("id", "integer", on_error="null")], "it must be nullable"),
        ([TransformSpec("note", "template", options={"template": "{{ nmae }}"})], "there is no column nmae"),
    ],
)
def test_rules_that_do_not_fit(rules: list[TransformSpec], words: str) -> None:
    with pytest.raises(PgetlError, match=words) as raised:
        rules_of(spec(*rules), TABLE, schema())
    assert raised.value.kind is ErrorKind.TRANSFORM
    assert raised.value.table == str(TABLE)


def test_a_key_may_depend_on_the_key_alone() -> None:
    of = schema(("name",), "index", column("text", "name", not_null=True), column("text", "note"))
    rule = TransformSpec("name", "template", options={"template": "{{ note }}"})
    with pytest.raises(PgetlError, match="would not stay distinct"):
        rules_of(spec(rule), TABLE, of)


def test_strict_mode_lets_no_column_pass_without_a_rule() -> None:
    strict = spec(*RULES, mode="strict")
    with pytest.raises(PgetlError, match=r"Column note of public\.people has no rule"):
        rules_of(strict, TABLE, schema())
    kept = spec(*RULES, TransformSpec("*", "keep"), mode="strict")
    found = rules_of(kept, TABLE, schema())
    assert found is not None
    assert [one.column.name for one in found.columns] == ["id", "name", "bio"]


def test_the_first_rule_that_covers_a_column_holds() -> None:
    found = rules_of(
        spec(
            TransformSpec("n*", "hash", table="other.*"),
            TransformSpec("nam*", "keep", table="public.people"),
            TransformSpec("n*", "mask"),
        ),
        TABLE,
        schema(),
    )
    assert found is not None
    assert [(one.column.name, one.use) for one in found.columns] == [("note", "mask")]


def test_without_rules_there_is_nothing_to_do() -> None:
    assert rules_of(spec(), TABLE, schema()) is None
    assert rules_of(spec(TransformSpec("*", "keep")), TABLE, schema()) is None
