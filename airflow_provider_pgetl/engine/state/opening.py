"""From a state URI to a store.

`memory:` is for throw-away runs: a store of this process alone, gone with it. Everything else is Postgres, whose
libraries are imported only then.
"""

from __future__ import annotations

from airflow_provider_pgetl.engine.state.memory import MemoryStore
from airflow_provider_pgetl.engine.state.protocol import Store


def open_store(uri: str, pipeline_id: str) -> Store:
    """The pipeline's store with its cache filled; its tables are created or upgraded where that is needed."""
    if uri == "memory:":
        return MemoryStore(pipeline_id)
    from airflow_provider_pgetl.engine.state.postgres import PostgresStore

    return PostgresStore.open(uri, pipeline_id)
