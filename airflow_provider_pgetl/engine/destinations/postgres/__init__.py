"""PostgreSQL as a destination.

The class is imported on first access: its options are also read where it is not opened.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_pgetl.engine.destinations.postgres.destination import PostgresDestination

__all__ = ["PostgresDestination"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.destination"), name)
