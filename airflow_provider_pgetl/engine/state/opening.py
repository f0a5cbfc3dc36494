"""Opening a store from a state URI.

`memory:` is for throw-away runs: a store of this process alone, which is lost when the process ends. Every other URI is
Postgres, whose libraries are imported only then.
"""

from __future__ import annotations

from airflow_provider_pgetl.engine.state.memory import MemoryStore
from airflow_provider_pgetl.engine.state.protocol import Store


def open_store(uri: str, pipeline_id: str, *, in_source: bool = False) -> Store:
    """Returns the pipeline's store with its cache filled. Its tables are created or upgraded where that is needed.

    `in_source`: the source holds the state, so that errors name the database as the source.
    """
    if uri == "memory:":
        return MemoryStore(pipeline_id)
    from airflow_provider_pgetl.engine.state.postgres import PostgresStore

    return PostgresStore.open(uri, pipeline_id, _role(in_source))


def is_stored(uri: str, pipeline_id: str, *, in_source: bool = False) -> bool:
    """Returns whether there is state of the pipeline; creates none. State in the memory of a process can only be read
    there, so for `memory:` the answer is True."""
    if uri == "memory:":
        return True
    from airflow_provider_pgetl.engine.state.postgres import is_stored

    return is_stored(uri, pipeline_id, _role(in_source))


def withdraw_unused(uri: str, *, in_source: bool = False) -> bool:
    """Removes what stores share in that database, if no pipeline is left there. Returns whether anything was
    removed."""
    if uri == "memory:":
        return False
    from airflow_provider_pgetl.engine.state.migrate import withdraw

    return withdraw(uri, _role(in_source))


def _role(in_source: bool) -> str:
    from airflow_provider_pgetl.engine.state.connecting import STATE_DATABASE

    return "the source" if in_source else STATE_DATABASE
