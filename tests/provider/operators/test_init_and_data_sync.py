"""What `init` and `data_sync` do when they are run, retried, and cleared, on a real store."""

from __future__ import annotations

import pytest
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    TaskDeferred,
)

from airflow_provider_pgetl.engine.model.phases import (
    CopyStarted,
)
from airflow_provider_pgetl.engine.state.store import DestinationMetadata
from tests.provider.table import HERE, ORDERS, Table

pytestmark = pytest.mark.parametrize("source_server", [16], indirect=True)


def test_init_cleared_resets_the_table_once(table: Table) -> None:
    table.copy()
    table.hand_over()
    assert table.run("init") is None
    assert (table.phase, table.generation) == ("Ready", 1)
    assert table.run("init") is None
    assert (table.phase, table.generation) == ("Init", 2)


def test_init_cleared_forgets_what_a_copy_has_found(table: Table) -> None:
    store = table.pipeline.store
    table.copy()
    table.hand_over()
    store.store_places({ORDERS: DestinationMetadata(ORDERS, HERE, details={"rows": 7})})
    assert table.run("init") is None
    store.load()
    assert store.destination_metadata(ORDERS) is not None
    assert table.run("init") is None
    store.load()
    assert store.destination_metadata(ORDERS) is None


def test_data_sync_passes_a_table_that_is_copied_and_copies_one_that_was_cleared(table: Table) -> None:
    table.copy()
    table.hand_over()
    assert table.run("data_sync") is None
    assert table.generation == 1
    busy = [table.pipeline.store.start_attempt(60.0) for _ in range(2)]
    waiting = table.run("data_sync")
    assert isinstance(waiting, TaskDeferred)
    assert (table.phase, table.generation) == ("Init", 2)
    # Started again while it waits: the Clear has been obeyed already.
    assert isinstance(table.run("data_sync"), TaskDeferred)
    assert table.generation == 2
    assert table.pipeline.store.live_attempts() == set(busy)


def test_data_sync_waits_while_another_copies_its_table(table: Table) -> None:
    attempt = table.pipeline.store.start_attempt(60.0)
    table.tell(CopyStarted(1, attempt))
    assert isinstance(table.run("data_sync"), TaskDeferred)
    assert table.phase == "DataSync"


def test_data_sync_fails_for_what_only_a_person_can_settle_and_goes_back_once_cleared(table: Table) -> None:
    table.fail("manual")
    assert isinstance(table.run("data_sync"), AirflowFailException)
    for _ in range(2):
        table.pipeline.store.start_attempt(60.0)
    assert isinstance(table.run("data_sync"), TaskDeferred)
    assert (table.phase, table.generation) == ("Init", 2)


def test_without_its_spark_connection_data_sync_says_so_and_is_not_retried(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    outcome = table.run("data_sync")
    assert isinstance(outcome, AirflowFailException)
    assert "'spark_default'" in str(outcome)
    assert table.pipeline.store.live_attempts() == set()
    assert table.phase == "Init"
