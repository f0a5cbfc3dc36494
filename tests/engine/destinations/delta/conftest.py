"""A lake in a folder."""

from pathlib import Path

import pytest

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.testing.builders import Replica
from tests.engine.destinations.delta.reading import ANN


@pytest.fixture
def replica(tmp_path: Path) -> Replica:
    """A table of one row, copied."""
    return Replica(DeltaDestination(str(tmp_path), "shop"), pipeline="shop").create(ANN)
