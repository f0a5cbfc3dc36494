"""What a person does to a pipeline from outside its tasks, by its state alone: pause it, resume it, have tables copied
again.

Source and destination are not touched, and nothing is waited for: the worker that streams learns of it by the state,
within about a second, and whoever looks at the pipeline sees it. Where nobody streams, the epoch is raised, so that a
worker that was believed dead cannot write to a table that was taken from it.

The state must be of this version: a display must not migrate what workers of an older version still use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import Refused, Reset
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.engine.state.postgres_store import PostgresStore

IsOwn = Callable[[str | None], bool]
"""Whether the pipeline with this owner may be acted upon."""


def pause(uri: str, pipeline: str, is_own: IsOwn) -> None:
    """Has the streams end and no copy begin until `resume`. The slots remain and retain WAL."""
    with _opened(uri, pipeline, is_own) as store:
        store.set_paused(True)


def resume(uri: str, pipeline: str, is_own: IsOwn) -> None:
    with _opened(uri, pipeline, is_own) as store:
        store.set_paused(False)


def copy_again(uri: str, pipeline: str, tables: Collection[TableName], is_own: IsOwn) -> None:
    """Resets the tables, either all of them or none. Readers keep the old data until a new copy is published."""
    with _opened(uri, pipeline, is_own) as store:
        records = store.tables()
        unknown = sorted(table for table in tables if table not in records)
        if unknown:
            names = ", ".join(map(written, unknown))
            raise PgetlError(ErrorKind.USAGE, f"Pipeline {pipeline} has no table {names}.", remedy="Look again.")
        answer = store.apply({table: Reset(records[table].state.generation) for table in tables})
        if isinstance(answer, Refused):
            names = ", ".join(map(written, tables))
            raise PgetlError(ErrorKind.USAGE, f"{names} could not be reset: {answer.why}.", remedy="Try again.")
        if store.lease() is None:
            store.raise_epoch()


@contextmanager
def _opened(uri: str, pipeline: str, is_own: IsOwn) -> Iterator[PostgresStore]:
    with closing(PostgresStore(uri, pipeline)) as store:
        owner = store.pipeline().owner
        if not is_own(owner):
            message = f"Pipeline {pipeline} belongs to {owner}."
            raise PgetlError(ErrorKind.OCCUPIED, message, remedy="Act on it there.")
        yield store
