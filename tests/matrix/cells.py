"""The combinations that are tested."""

from __future__ import annotations

from dataclasses import dataclass

LOCAL, CELERY = "LocalExecutor", "CeleryExecutor"
POSTGRES, SQLITE = "postgres", "sqlite"


@dataclass(frozen=True, slots=True)
class Cell:
    """`airflow` and `python` are releases without a patch: the newest one is meant. `metadata` is Airflow's own
    database."""

    airflow: str
    python: str
    executor: str
    metadata: str

    @property
    def name(self) -> str:
        executor = self.executor.removesuffix("Executor").lower()
        return f"airflow{self.airflow}-python{self.python}-{executor}-{self.metadata}"


NEWEST = "3.3"

# Airflow has SQLite for trials on one machine: with Celery nobody runs it.
CELLS = (
    Cell("3.3", "3.13", LOCAL, POSTGRES),
    Cell("3.3", "3.12", CELERY, POSTGRES),
    Cell("3.3", "3.11", LOCAL, SQLITE),
    Cell("3.2", "3.13", CELERY, POSTGRES),
    Cell("3.2", "3.12", LOCAL, SQLITE),
    Cell("3.1", "3.13", CELERY, POSTGRES),
    Cell("3.1", "3.11", LOCAL, POSTGRES),
)
