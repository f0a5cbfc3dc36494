"""Triggers that another version of this package has stored, and that wait in Airflow's database during an upgrade."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from airflow.triggers.base import BaseTrigger

from airflow_provider_pgetl import Postgres
from airflow_provider_pgetl.declarations import Replication, declare
from airflow_provider_pgetl.triggers.pgetl import (
    AdmissionTrigger,
    ApplyTrigger,
    CaughtUpTrigger,
    LagTrigger,
    PhaseTrigger,
)

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
