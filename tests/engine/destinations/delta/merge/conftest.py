"""A lake beside whose table changes land."""

from pathlib import Path

import pytest

from airflow_provider_pgetl.engine.destinations.delta import DeltaDestination
from airflow_provider_pgetl.testing.builders import Replica
from tests.engine.destinations.delta.landing import LANDS, Open
from tests.engine.destinations.delta.reading import ANN


@pytest.fixture
def open_(tmp_path: Path) -> Open:
    return lambda: DeltaDestination(str(tmp_path), "shop", LANDS)


@pytest.fixture
def replica(open_: Open) -> Replica:
    return Replica(open_(), pipeline="shop").create(ANN)
