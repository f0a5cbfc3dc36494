"""What the ends of a stream mean for the task."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_pgetl import Postgres, ReplicationDag
from airflow_provider_pgetl.failing import PgetlFailure


def end(event: dict[str, Any], **options: Any) -> Any:
    dag = ReplicationDag("shop", source_conn_id="a", tables=["public.orders"], destination=Postgres("b"), **options)
    return dag.task_dict["apply"].execute_complete({}, event)


def failed(kind: str) -> dict[str, Any]:
    return {"status": "failed", "kind": kind, "message": "It ended so.", "remedy": "Do this."}


def test_trouble_that_may_pass_is_retried() -> None:
    with pytest.raises(PgetlFailure, match=r"It ended so\. Do this\. A retry of this task tries again\."):
        end(failed("connection"))


def test_what_no_retry_can_help_is_not() -> None:
    with pytest.raises(AirflowFailException, match=r"It ended so\. Do this\. A retry cannot help"):
        end(failed("slot_lost"))


def test_a_gap_to_be_made_good_ends_the_run_for_the_next_to_copy() -> None:
    assert end(failed("slot_lost"), on_slot_lost="resync") == "begin_anew"
    with pytest.raises(AirflowFailException):
        end(failed("slot_lost"), on_slot_lost="resync", until="caught_up")


def test_a_bounded_run_that_cannot_catch_up_says_whose_turn_it_is() -> None:
    with pytest.raises(AirflowFailException, match=r"public\.orders must be copied, .*`data_sync`"):
        end({"status": "copy_needed", "tables": ["public.orders"]}, until="caught_up")
