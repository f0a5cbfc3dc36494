"""Postgres replication for Airflow: declare tables, and they are copied and kept up to date.

Spark's Python workers and every Airflow process import this module, so it imports its public names lazily, on first
access.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_pgetl.assets import replica_asset, replica_changes
    from airflow_provider_pgetl.dag import ReplicationDag, ReplicationTaskGroup
    from airflow_provider_pgetl.declarations import (
        Copying,
        CustomDestination,
        DeltaLake,
        Postgres,
        Streaming,
        Table,
        Transform,
        Transformation,
        after,
    )
    from airflow_provider_pgetl.hooks.pgetl import PgetlHook
    from airflow_provider_pgetl.operators.apply import MergeOperator
    from airflow_provider_pgetl.operators.maintenance import (
        CheckOperator,
        DestroyOperator,
        PauseOperator,
        ResumeOperator,
        ResyncOperator,
        VerifyOperator,
    )
    from airflow_provider_pgetl.sensors.pgetl import LagSensor, PhaseSensor

__version__ = "0.1.0"

__all__ = [
    "CheckOperator",
    "Copying",
    "CustomDestination",
    "DeltaLake",
    "DestroyOperator",
    "LagSensor",
    "MergeOperator",
    "PauseOperator",
    "PgetlHook",
    "PhaseSensor",
    "Postgres",
    "ReplicationDag",
    "ReplicationTaskGroup",
    "ResumeOperator",
    "ResyncOperator",
    "Streaming",
    "Table",
    "Transform",
    "Transformation",
    "VerifyOperator",
    "after",
    "replica_asset",
    "replica_changes",
]

_HOMES = {
    "CheckOperator": "operators.maintenance",
    "Copying": "declarations",
    "CustomDestination": "declarations",
    "DeltaLake": "declarations",
    "DestroyOperator": "operators.maintenance",
    "LagSensor": "sensors.pgetl",
    "MergeOperator": "operators.apply",
    "PgetlHook": "hooks.pgetl",
    "PhaseSensor": "sensors.pgetl",
    "Postgres": "declarations",
    "ReplicationDag": "dag",
    "ReplicationTaskGroup": "dag",
    "PauseOperator": "operators.maintenance",
    "ResumeOperator": "operators.maintenance",
    "ResyncOperator": "operators.maintenance",
    "Streaming": "declarations",
    "Table": "declarations",
    "Transform": "declarations",
    "Transformation": "declarations",
    "VerifyOperator": "operators.maintenance",
    "after": "declarations",
    "replica_asset": "assets",
    "replica_changes": "assets",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module(f"{__name__}.running_airflow").refuse_an_older_one()
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
