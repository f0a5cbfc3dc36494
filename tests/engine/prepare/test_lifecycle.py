"""Who may prepare a pipeline."""

from __future__ import annotations

import pytest

from airflow_provider_pgetl.engine.config.spec import DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.model.errors import ErrorKind
from airflow_provider_pgetl.engine.prepare.lifecycle import is_same, refusal


def declared(owner: str | None, adopt: str | None = None) -> PipelineSpec:
    tables = (TableSpec("public.orders"),)
    return PipelineSpec("shop", tables, SourceSpec("env:SOURCE"), DestinationSpec("memory"), owner=owner, adopt=adopt)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("sales", "sales", True),
        ("sales", "sales/replication", False),
        ("sales/replication", "stock/replication", False),
        ("sales@a.example", "sales@b.example", False),
        ("sales@a.example", "sales", True),
        ("sales", "sales@a.example", True),
    ],
)
def test_owners_are_the_same_as_far_as_both_say(one: str, other: str, same: bool) -> None:
    assert is_same(one, other) is same


def test_a_pipeline_of_nobody_may_be_prepared_by_all() -> None:
    assert refusal(declared("sales"), None) is None
    assert refusal(declared(None), None) is None


def test_another_owner_is_refused_and_told_how_to_take_it_over() -> None:
    refused = refusal(declared("stock/replication"), "sales/replication@a.example")
    assert refused is not None
    assert refused.kind is ErrorKind.OWNED
    assert refused.message == (
        "Pipeline shop belongs to sales/replication@a.example, which prepares it; this is stock/replication."
    )
    assert '`adopt="sales/replication@a.example"`' in refused.remedy
    assert "`pipeline_id`" in refused.remedy


def test_a_pipeline_file_is_refused_what_a_dag_owns() -> None:
    refused = refusal(declared(None), "sales")
    assert refused is not None
    assert "`pgetl release FILE`" in refused.remedy


@pytest.mark.parametrize("adopted", ["sales", "sales@a.example"])
def test_a_pipeline_is_taken_over_from_the_owner_that_is_named(adopted: str) -> None:
    assert refusal(declared("stock", adopt=adopted), "sales@a.example") is None
    assert refusal(declared("stock", adopt=adopted), "marketing") is not None
