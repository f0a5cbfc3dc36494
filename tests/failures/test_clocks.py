"""Machines whose clocks differ share a pipeline: what is due is judged by the clock of the store."""

from contextlib import closing

import pytest

from airflow_provider_pgetl.engine.model.phases import Failed, RetryPolicy
from airflow_provider_pgetl.engine.model.tables import TableName
from airflow_provider_pgetl.engine.state.store import open_store
from tests.failures.pipeline import PipelineUnderTest

pytestmark = pytest.mark.servers

ITEMS = TableName("public", "items")


def test_a_retry_is_due_when_the_store_says_so_on_a_machine_whose_clock_is_behind(followed: PipelineUnderTest) -> None:
    with closing(open_store(followed.state.uri, "shop")) as store:
        state = store.tables()[ITEMS].state
        at = RetryPolicy("timed", store.now() + 1.0)
        store.apply({ITEMS: Failed(state.generation, "It failed.", "Wait.", at, state.attempt)})
    followed.environment["TEST_CLOCK_AHEAD"] = "-3600"
    with followed.start("run") as run:
        run.until(lambda: followed.phases()["public.items"] == "Ready", "the table was Ready again")
        run.stop().assert_well()
    followed.assert_nothing_lost()
