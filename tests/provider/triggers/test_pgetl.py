"""When triggers fire."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_pgetl import Postgres
from airflow_provider_pgetl.declarations import Replication, declare
from airflow_provider_pgetl.triggers.pgetl import (
    AdmissionTrigger,
    ApplyTrigger,
    CaughtUpTrigger,
    LagTrigger,
    PhaseTrigger,
    PipelineTrigger,
)
from tests.provider.running import first


class _Failing(PipelineTrigger):
    work = f"{__name__}:fail_at_once"

    def stored(self) -> dict[str, Any]:
        return {}


async def fail_at_once(_: PipelineTrigger) -> AsyncIterator[TriggerEvent]:
    raise ZeroDivisionError
    yield


def test_none_fires_before_the_scheduler_has_heard_that_its_task_deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PipelineTrigger, "least_seconds", 1.5)
    began = time.monotonic()
    assert asyncio.run(first(AdmissionTrigger("shop", "shop_db", ["public", "t"], 2, not_before=0.0))) == {"due": True}
    assert time.monotonic() - began >= 1.5


def test_none_fails_before_that_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PipelineTrigger, "least_seconds", 0.5)
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        asyncio.run(first(_Failing()))
    assert time.monotonic() - began >= 0.5


# -- a triggerer imports a trigger's class in its event loop, while everybody else's triggers wait ---------------------


PROGRAM = """
import sys
import airflow.triggers.base
before = set(sys.modules)
import airflow_provider_pgetl.triggers.pgetl
print(*sorted(set(sys.modules) - before))
"""
TRIGGERS = {"airflow_provider_pgetl.triggers.pgetl"}


def test_nothing_is_imported_with_a_trigger_but_its_own_few_lines() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    imported = set(said.splitlines()[-1].split())
    assert imported >= TRIGGERS
    assert imported - TRIGGERS <= {"airflow_provider_pgetl", "airflow_provider_pgetl.triggers"}


# triggers that another version of this package has stored, and that wait in Airflow's database during an upgrade


# The first shape of each, as it was stored: these stay, whatever the classes come to take.
SPEC = {
    "id": "shop",
    "tables": [{"name": "public.orders"}],
    "source": {"uri": "env:PGETL_SOURCE_URI"},
    "destination": {"type": "postgres", "uri": "env:PGETL_DESTINATION_URI"},
    "state_uri": "env:PGETL_STATE_URI",
}
REPLICATION: dict[str, Any] = {
    "spec": SPEC,
    "connections": {"source": "shop_db", "state": "shop_db", "destination": "replica_db"},
    "spark_conn_id": "spark_default",
}
FIRST: list[tuple[type[BaseTrigger], dict[str, Any]]] = [
    (ApplyTrigger, {"replication": REPLICATION, "until_caught_up": False, "rotate_at": None}),
    (PhaseTrigger, {"pipeline": "shop", "state_conn_id": "shop_db", "table": ["public", "t"], "phases": ["Ready"]}),
    (AdmissionTrigger, {"pipeline": "shop", "state_conn_id": "shop_db", "table": ["public", "t"], "capacity": 2}),
    (
        CaughtUpTrigger,
        {
            "pipeline": "shop",
            "state_conn_id": "shop_db",
            "table": ["public", "t"],
            "position": "0/1000",
            "run": "shop/run_1",
            "follows": "apply",
        },
    ),
    (LagTrigger, {"pipeline": "shop", "state_conn_id": "shop_db", "most_bytes": 1, "most_seconds": None}),
]


@pytest.mark.parametrize(("kind", "kwargs"), FIRST, ids=lambda value: getattr(value, "__name__", ""))
def test_the_first_shape_is_accepted_and_stored_with_what_has_come_since(
    kind: type[BaseTrigger], kwargs: dict[str, Any]
) -> None:
    path, stored = kind(**kwargs).serialize()
    assert path.rpartition(".")[2] == kind.__name__
    assert stored.items() >= kwargs.items()


@pytest.mark.parametrize(("kind", "kwargs"), FIRST, ids=lambda value: getattr(value, "__name__", ""))
def test_what_a_later_version_stores_beside_is_let_go(kind: type[BaseTrigger], kwargs: dict[str, Any]) -> None:
    _, stored = kind(**kwargs, of_a_later_version=[1, 2]).serialize()
    assert "of_a_later_version" not in stored


def test_a_replication_of_another_version_is_understood() -> None:
    expected = declare("shop", source_conn_id="shop_db", tables=["public.orders"], destination=Postgres("replica_db"))
    expected = replace(expected, spec=replace(expected.spec, state_uri="env:PGETL_STATE_URI"))
    assert Replication.from_json(REPLICATION) == expected
    later = {**REPLICATION, "more": 1, "connections": {**REPLICATION["connections"], "more": "x"}}
    assert Replication.from_json(later) == expected
