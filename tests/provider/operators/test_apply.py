"""How `apply` ends, by the event with which its trigger has ended."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException, TaskDeferred

from airflow_provider_pgetl import Postgres, ReplicationDag
from airflow_provider_pgetl.failures import PgetlFailure
from tests.provider.running import TaskInstance


def end(event: dict[str, Any], **options: Any) -> Any:
    context: Any = {"ti": TaskInstance("shop", "apply"), "run_id": "run_1"}
    dag = ReplicationDag("shop", source_conn_id="a", tables=["public.orders"], destination=Postgres("b"), **options)
    return dag.task_dict["apply"].execute_complete(context, event)


def failed(kind: str) -> dict[str, Any]:
    return {"status": "failed", "kind": kind, "message": "It ended so.", "remedy": "Do this."}


def test_a_temporary_error_is_retried() -> None:
    with pytest.raises(PgetlFailure, match=r"It ended so\. Do this\. A retry of this task tries again\."):
        end(failed("connection"))


def test_an_error_that_no_retry_can_help_uses_no_retries() -> None:
    with pytest.raises(
        AirflowFailException, match=r"It ended so\. Do this\. Then clear this task\. A retry cannot help"
    ):
        end(failed("slot_lost"))


def test_a_gap_ends_the_run_under_resync_and_the_next_run_copies() -> None:
    assert end(failed("slot_lost"), on_slot_lost="resync") == "begin_anew"
    with pytest.raises(AirflowFailException):
        end(failed("slot_lost"), on_slot_lost="resync", until="caught_up")


def test_a_bounded_run_that_cannot_catch_up_names_the_task_to_clear() -> None:
    with pytest.raises(AirflowFailException, match=r"public\.orders must be copied, .*`data_sync`"):
        end({"status": "copy_needed", "tables": ["public.orders"]}, until="caught_up")


def test_an_edit_of_the_file_during_an_outage_does_not_end_the_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in "AB":
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", "postgresql://u:p@127.0.0.1:1/d")
    with pytest.raises(TaskDeferred) as deferred:
        end({"status": "edited", "rotate_at": 4e9, "told": [["public", "orders", 3]]})
    _, arguments = deferred.value.trigger.serialize()
    assert (arguments["rotate_at"], arguments["told"]) == (4e9, [["public", "orders", 3]])
