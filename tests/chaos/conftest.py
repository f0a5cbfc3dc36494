"""What every end-to-end test needs: a shop, and runs of a pipeline that replicates it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_pgetl.testing.servers.postgres_servers import Databases
from tests.runs import Runs
from tests.shop import create_shop, create_small_shop, pipeline_text, small_file

Open = Callable[..., Runs]


@pytest.fixture
def shop_runs(databases: Databases, tmp_path: Path) -> Iterator[Open]:
    """`shop_runs(rows=…, copy="…")`: a shop, and runs that replicate it. Whatever still runs is killed at the end."""
    opened: list[Runs] = []

    def open_runs(rows: int = 5_000, **options: str) -> Runs:
        create_shop(databases.source, rows)
        opened.append(Runs(databases, tmp_path, pipeline_text(**options)))
        return opened[-1]

    yield open_runs
    for runs in opened:
        runs.close()


@pytest.fixture
def runs(databases: Databases, tmp_path: Path) -> Iterator[Runs]:
    """The same of the small shop."""
    create_small_shop(databases.source)
    runs = Runs(databases, tmp_path, small_file())
    yield runs
    runs.close()
