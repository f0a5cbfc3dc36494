"""For authors of destinations: a test suite for the contract of destinations.

    from airflow_provider_pgetl.testing import DestinationConformance

    class TestMine(DestinationConformance):
        def open(self):
            return MyDestination(...)

        def read(self, table):
            return [(row.id, row.name, row.note) for row in ...]

Run it with pytest. The protocols that your destination implements are tested, the others are skipped.

The suite needs the extra `testing`. The names are imported on first access, because the demo uses `testing.servers`
without that extra.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_pgetl.testing.builders import ABSENT, Wire
    from airflow_provider_pgetl.testing.conformance import DestinationConformance

__all__ = ["ABSENT", "DestinationConformance", "Wire"]

_HOMES = {"ABSENT": "builders", "DestinationConformance": "conformance", "Wire": "builders"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
