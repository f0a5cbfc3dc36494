"""What code that runs is given to work with."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from airflow_provider_pgetl.engine.config.spec import DestinationSpec, PipelineSpec, SourceSpec, TableSpec
from airflow_provider_pgetl.engine.context import PipelineContext
from airflow_provider_pgetl.engine.model.reports import nobody
from airflow_provider_pgetl.engine.state.memory_store import MemoryStore


class Plain:
    """A destination of the smallest kind."""

    name = "plain"
    closed: ClassVar[list[str]] = []

    def drop_table_for_copy(self, schema: Any) -> None: ...

    def write_table_rows(self, schema: Any, rows: Any) -> None: ...

    def write_events(self, batch: Any) -> None: ...

    def shutdown(self) -> None:
        self.closed.append(self.name)


@pytest.fixture
def context() -> PipelineContext:
    Plain.closed.clear()
    spec = PipelineSpec(
        "shop", (TableSpec("public.a"),), SourceSpec("env:SOURCE"), DestinationSpec(f"{__name__}:Plain")
    )
    return PipelineContext(spec, MemoryStore("shop"), nobody, "source", None, {})


def test_a_destination_is_open_for_a_block_and_no_longer(context: PipelineContext) -> None:
    with pytest.raises(ZeroDivisionError), context.destination("w"):
        raise ZeroDivisionError
    assert Plain.closed == ["plain"]


def test_one_without_preferences_takes_text_and_every_batch(context: PipelineContext) -> None:
    assert context.write_interval() == 0.0
    assert context.binary_columns() is None
    assert Plain.closed == ["plain", "plain"]
