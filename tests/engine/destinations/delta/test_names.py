"""Names of columns that Delta cannot tell apart are told before a copy, and are their table's trouble alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.tables import TableSchema
from airflow_provider_pgetl.testing.builders import Replica, sample_schema
from airflow_provider_pgetl.testing.conformance import ANN


def with_names(*names: str) -> TableSchema:
    """The key is the first of them."""
    schema = sample_schema()
    columns = tuple(replace(column, name=name) for column, name in zip(schema.columns, names, strict=True))
    return replace(schema, columns=columns, key=names[:1])


CLASHES = [
    ("upsert", ("id", "Note", "note"), "a column note beside Note:"),
    ("upsert", ("É", "x", "é"), "a column é beside É:"),
    ("history", ("id", "x", "_PGETL_kind"), "beside _pgetl_kind, which its history needs for itself:"),
]


@pytest.mark.parametrize(("mode", "names", "words"), CLASHES)
def test_names_that_differ_in_case_alone(tmp_path: Path, mode: str, names: tuple[str, ...], words: str) -> None:
    destination = DeltaDestination(str(tmp_path), "shop", {"mode": mode})
    schema = with_names(*names)
    (finding,) = destination.inspect_table(schema)
    assert words in finding.problem
    assert "columns = [...]" in finding.remedy
    assert (finding.severity, finding.kind) == ("error", ErrorKind.SCHEMA)
    with pytest.raises(PgetlError) as refused:
        destination.begin_copy(Replica(destination, schema).target, 1)
    assert (refused.value.message, refused.value.table) == (finding.problem, str(schema.table))
    assert not refused.value.transient
    assert not list(tmp_path.iterdir())


def test_names_that_differ_otherwise(tmp_path: Path) -> None:
    destination = DeltaDestination(str(tmp_path), "shop")
    schema = with_names("id", "_pgetl_kind", "ID of it")
    assert destination.inspect_table(schema) == []
    Replica(destination, schema, pipeline="shop").create(ANN)
