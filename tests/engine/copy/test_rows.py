"""COPY's CSV as record batches."""

from __future__ import annotations

import csv
import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.copy.rows import no_rows, record_batches
from airflow_provider_pgetl.engine.model.errors import PgetlError
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.postgres.copy_format import parse_copy_rows

values = st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
rows_of_some_width = st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[values] * width), min_size=1))


def copied(rows: list[tuple[str | None, ...]]) -> bytes:
    """As Postgres writes them with FORCE_QUOTE *."""
    quoted = [["" if v is None else '"' + v.replace('"', '""') + '"' for v in row] for row in rows]
    return "".join(",".join(row) + "\n" for row in quoted).encode()


OIDS = {"int4": 23, "text": 25, "date": 1082}


def schema(*types: str) -> TableSchema:
    columns = tuple(Column(f"c{i}", PgType(OIDS[name], name), name) for i, name in enumerate(types))
    return TableSchema(TableName("public", "things"), 1, columns, ())


@given(rows_of_some_width)
def test_every_text_and_null_comes_back(rows: list[tuple[str | None, ...]]) -> None:
    columns = parse_copy_rows(copied(rows), len(rows[0]))

    assert list(zip(*(pa.array(column).cast(pa.string()).to_pylist() for column in columns), strict=True)) == rows


def test_the_form_is_a_csv_that_others_read_too() -> None:
    assert list(csv.reader(io.StringIO(copied([('say "hi"', "a\nb")]).decode(), newline=""))) == [['say "hi"', "a\nb"]]


def test_batches_are_bounded_and_typed() -> None:
    blocks = [copied([(str(n), None), (str(n + 1), "x")]) for n in range(0, 10, 2)]
    batches = list(record_batches(schema("int4", "text"), blocks, batch_bytes=2 * len(blocks[0])))

    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert pa.Table.from_batches(batches).column("c0").to_pylist() == list(range(10))
    assert batches[0].schema == no_rows(schema("int4", "text")).schema


def test_no_blocks_no_batches() -> None:
    assert list(record_batches(schema("int4"), [])) == []


def test_a_refused_value_names_its_table() -> None:
    with pytest.raises(PgetlError, match="infinity") as caught:
        list(record_batches(schema("date"), [copied([("infinity",)])]))
    assert caught.value.table == "public.things"
