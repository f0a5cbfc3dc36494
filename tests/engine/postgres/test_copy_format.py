"""COPY's text format: what is written is read back, wherever the blocks are cut; the escapes are Postgres' own."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_pgetl.engine.postgres import copy_format

values = st.none() | st.binary(max_size=12) | st.sampled_from([b"\\N", b"\\", b"\t\n\r", b"N", b""])


@given(st.lists(st.lists(values, min_size=2, max_size=2), max_size=5), st.integers(1, 7))
def test_rows_survive_any_cut(table: list[list[bytes | None]], size: int) -> None:
    stream = b"".join(map(copy_format.write, table))
    blocks = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert [list(row.values()) for row in copy_format.rows(("a", "b"), blocks)] == table


@given(st.lists(st.lists(values, min_size=2, max_size=2), max_size=6), st.integers(0, 2))
def test_columns_are_written_as_their_rows_are(table: list[list[bytes | None]], skipped: int) -> None:
    columns = [pa.array([row[at] for row in table], pa.binary()).slice(skipped) for at in range(2)]
    assert copy_format.copy_text(columns) == b"".join(map(copy_format.write, table[skipped:]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (rb"\b\f\n\r\t\v", b"\b\f\n\r\t\v"),
        (rb"\101\x4a\xA", b"AJ\n"),
        (rb"\\N", rb"\N"),
        (rb"\N", None),
        (rb"\q", b"q"),
    ],
)
def test_reads_every_escape_of_the_documentation(field: bytes, value: bytes | None) -> None:
    assert copy_format.read(field) == value
