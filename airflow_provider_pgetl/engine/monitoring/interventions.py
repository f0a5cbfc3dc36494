"""Interventions of a user in a pipeline, from outside its tasks and by its state alone: pause it, resume it, have
tables copied again.

Source and destination are not touched, and nothing is waited for: the streaming worker reads the change from the state,
within about a second, and so do displays. Where no worker streams, the epoch is raised, so that a worker whose lease
has expired cannot write to a table that was reset.

A display must neither create a pipeline nor migrate a state that workers of an older version still use, so both are
checked before a store is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.model.phases import Refused, Reset
from airflow_provider_pgetl.engine.model.tables import TableName, written
from airflow_provider_pgetl.engine.monitoring.snapshots import asking, read_snapshot
from airflow_provider_pgetl.engine.state.postgres_store import PostgresStore
from airflow_provider_pgetl.engine.state.schema import HEAD, SCHEMA, VERSION_TABLE

_CONNECT_SECONDS = 5

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
    _expect_current(uri, pipeline)
    with closing(PostgresStore(uri, pipeline)) as store:
        owner = store.pipeline().owner
        if not is_own(owner):
            message = f"Pipeline {pipeline} belongs to {owner}."
            raise PgetlError(ErrorKind.OCCUPIED, message, remedy="Act on it there.")
        yield store


def _expect_current(uri: str, pipeline: str) -> None:
    """Raises unless the state has the pipeline, and is of this version."""
    with asking(uri, pipeline, "intervention", _CONNECT_SECONDS) as connection:
        if connection is None or read_snapshot(connection, pipeline) is None:
            raise PgetlError(ErrorKind.USAGE, f"Pipeline {pipeline} has not run yet.")
        ((version,),) = connection.execute(f"select version_num from {SCHEMA}.{VERSION_TABLE}").fetchall()
    if version != HEAD:
        message = f"The state of {pipeline} is of another version ({version}) than this release ({HEAD})."
        raise PgetlError(ErrorKind.CONFIG, message, remedy="Have Airflow's processes run one release of pgetl.")
