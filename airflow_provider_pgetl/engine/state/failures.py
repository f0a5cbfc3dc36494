"""What a failing state database looks like to the engine: always a `PgetlError`, never a driver's exception.

The message names host and database and carries the server's own first words; never the URI, a password, or the
values of a statement. Trouble that may pass is `STORE`, which is retried in place. What will not pass by itself keeps
its kind: a wrong password, a missing privilege.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import sqlalchemy.exc

from airflow_provider_pgetl.engine.connection_failures import connection_failure
from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError, classify
from airflow_provider_pgetl.engine.state.instance import destroyed

_GRANT = (
    "Let the role that created the schema pgetl grant usage on it and select, insert, update, delete on all "
    "its tables; or, where there is no such schema yet, grant create on the database."
)
_GONE = frozenset({"23503"})
_WITHDRAWN = frozenset({"3F000", "42P01"})
_UNDEFINED = _WITHDRAWN | {"42703"}
_READ_ONLY = "25006"
_LASTING = frozenset(
    {ErrorKind.AUTHENTICATION, ErrorKind.NO_DATABASE, ErrorKind.PRIVILEGE, ErrorKind.CONFIG, ErrorKind.PREFLIGHT}
)
_OURS = frozenset({ErrorKind.SCHEMA, ErrorKind.TYPE, ErrorKind.VALUE, ErrorKind.CONSTRAINT})


@contextmanager
def translated(place: object, pipeline_id: str = "") -> Iterator[None]:
    """Raise what the drivers raise inside as a PgetlError about the database at `place`."""
    try:
        yield
    except (sqlalchemy.exc.DBAPIError, psycopg.Error) as error:
        raise _as_pgetl_error(error, place, pipeline_id) from error
    except sqlalchemy.exc.TimeoutError as error:
        message = f"No connection to {place} became free in time."
        raise PgetlError(ErrorKind.STORE, message) from error


def _as_pgetl_error(error: Exception, place: object, pipeline_id: str) -> PgetlError:
    cause = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) else error
    state = cause.sqlstate if isinstance(cause, psycopg.Error) else None
    if isinstance(cause, psycopg.OperationalError) and state is None:
        return _connection_error(place, cause)
    if state in _GONE or (pipeline_id and state in _WITHDRAWN):
        return destroyed(pipeline_id)
    kind, remedy = _judge(state)
    words = cause.diag.message_primary if isinstance(cause, psycopg.Error) else None
    return PgetlError(kind, f"The state could not be kept in {place}: {words or cause}.", remedy=remedy)


def _connection_error(place: object, error: psycopg.Error) -> PgetlError:
    """No SQLSTATE: there was no connection, or it broke."""
    found = connection_failure(str(place), error)
    return found if found.kind in _LASTING else PgetlError(ErrorKind.STORE, found.message, remedy=found.remedy)


def _judge(state: str | None) -> tuple[ErrorKind, str | None]:
    if state in _UNDEFINED:
        return ErrorKind.STORE, "Restore the schema pgetl from a backup, or run the pipeline again to begin anew."
    if state == _READ_ONLY:
        return ErrorKind.STORE, "Name the primary in its URI: a standby takes no writes."
    kind = classify(state)
    if kind in _OURS:
        return ErrorKind.INTERNAL, None
    if kind in _LASTING:
        return kind, _GRANT if kind is ErrorKind.PRIVILEGE else None
    return ErrorKind.STORE, None
