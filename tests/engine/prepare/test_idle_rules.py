"""Rules that cover nothing, and rules that never hold because an earlier one covers their columns."""

from __future__ import annotations

from airflow_provider_pgetl.engine.config.spec import (
    DestinationSpec,
    PipelineSpec,
    SourceSpec,
    TableSpec,
    TransformationSpec,
    TransformSpec,
)
from airflow_provider_pgetl.engine.model.tables import Column, PgType, TableName, TableSchema
from airflow_provider_pgetl.engine.prepare.transform_checks import _idle

PEOPLE = TableName("public", "people")
COLUMNS = tuple(Column(name, PgType(25, "text"), "text") for name in ("id", "email", "note"))
SCHEMAS = {PEOPLE: TableSchema(PEOPLE, 1, COLUMNS, ("id",))}


def told(*rules: TransformSpec) -> list[tuple[str, str]]:
    spec = PipelineSpec(
        "shop",
        (TableSpec("public.people"),),
        SourceSpec("env:S"),
        DestinationSpec("postgres", "env:D"),
        transform=rules,
        transformation=TransformationSpec("listed", "env:K"),
    )
    return [(one.severity, one.problem) for one in _idle(spec, SCHEMAS)]


def test_a_rule_behind_one_that_covers_its_columns_never_holds() -> None:
    everything, email = TransformSpec("*", "keep", "public.*"), TransformSpec("email", "email", "public.people")
    assert told(email, everything) == []
    words = 'The rule "email" for email of public.people never holds, as an earlier one covers its columns.'
    assert told(everything, email) == [("error", words)]
    pattern = TransformSpec("em*", "hash", "public.people")
    ((severity, _),) = told(everything, pattern)
    assert severity == "warning", "it may hold for columns that come later"


def test_a_rule_that_covers_no_column() -> None:
    ((severity, problem),) = told(TransformSpec("emial", "email", "public.people"))
    assert severity == "error"
    assert "covers no column" in problem
    assert "email" in problem
