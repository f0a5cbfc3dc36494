"""From a state URI to a store.

`memory:` is for throw-away runs: a store of this process alone, gone with it. Everything else is Postgres, whose
libraries are imported only then.
"""

from __future__ import annotations

from airflow_provider_pgetl.engine.state.memory import MemoryStore
from airflow_provider_pgetl.engine.state.protocol import Store


def open_store(uri: str, pipeline_id: str, *, in_source: bool = False) -> Store:
    """The pipeline's store with its cache filled; its tables are created or upgraded where that is needed.

    `in_source`: the source holds the state, so that trouble with it is told as the source's.
    """
    if uri == "memory:":
        return MemoryStore(pipeline_id)
    from airflow_provider_pgetl.engine.state.postgres import PostgresStore

    return PostgresStore.open(uri, pipeline_id, _role(in_source))


def is_stored(uri: str, pipeline_id: str, *, in_source: bool = False) -> bool:
    """Whether there is state of the pipeline. Makes none. Of that which lives in a process, only the process knows."""
    if uri == "memory:":
        return True
    from airflow_provider_pgetl.engine.state.postgres import is_stored

    return is_stored(uri, pipeline_id, _role(in_source))


def withdraw_unused(uri: str, *, in_source: bool = False) -> bool:
    """Take away what stores share in that database, if no pipeline is left there; whether anything was taken away."""
    if uri == "memory:":
        return False
    from airflow_provider_pgetl.engine.state.migrate import withdraw

    return withdraw(uri, _role(in_source))


def _role(in_source: bool) -> str:
    from airflow_provider_pgetl.engine.state.connecting import STATE_DATABASE

    return "the source" if in_source else STATE_DATABASE
