"""The state database: its address, the settings to which every session there is pinned, its errors, its clock, and the
migration of its tables.

The URI is in libpq's own form, several hosts included, and is only ever parsed by libpq. Its password is kept out of
every `repr`, and errors about the URI do not quote it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy.exc
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.pool import QueuePool

from airflow_provider_pgetl.engine.config.secrets import READABLE, describe
from airflow_provider_pgetl.engine.config.tokens import Address
from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError, classify
from airflow_provider_pgetl.engine.postgres.sessions import (
    BACKEND,
    REMEDY,
    STANDBYS_MISSING,
    commits_wait,
    connection_failure,
    expect_kept_sessions,
    of_the_primary,
    opened_session,
    pinning,
)
from airflow_provider_pgetl.engine.state.schema import HEAD, SCHEMA, VERSION_TABLE, metadata
from airflow_provider_pgetl.engine.state.store import destroyed

STATE_DATABASE = "the state database"
CONNECT_SECONDS = 10
BUSY_SECONDS = 10

# With these a server that vanished silently is noticed within some 20 s instead of the kernel's many minutes.
_DEFAULTS: Mapping[str, Any] = {
    "client_encoding": "utf8",
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


@dataclass(frozen=True, slots=True)
class StateDatabase:
    """A state database: how to connect to it, and its name in messages."""

    name: str
    address: Address = field(repr=False)

    @classmethod
    def parse(cls, uri: str, role: str = STATE_DATABASE) -> StateDatabase:
        """`role`: the name of the database in messages, if it also serves another purpose."""
        try:
            return cls(f"{role} {describe(uri)}", Address.read(uri))
        except psycopg.ProgrammingError:
            pass  # raised below, outside this block: libpq's message quotes the URI
        raise PgetlError(
            ErrorKind.CONFIG,
            f"The URI of {role} cannot be read.",
            remedy=READABLE,
        )

    def __str__(self) -> str:
        return self.name

    def connect(self, application_name: str, **more: Any) -> psycopg.Connection[Any]:
        """Returns a pinned session in autocommit. Statements are not prepared: a pooler in between may not support
        that."""

        def open_session() -> psycopg.Connection[Any]:
            return psycopg.connect(**self._parameters(application_name, more))

        return opened_session(open_session, self.name, lambda connection: connection.execute(pinning()))

    async def connect_async(self, application_name: str) -> psycopg.AsyncConnection[Any]:
        """Returns the same session as `connect`, for an event loop."""
        if self.address.settings:  # a token may have to be waited for
            parameters = await asyncio.to_thread(self._parameters, application_name, {})
        else:
            parameters = self._parameters(application_name, {})
        connection = await psycopg.AsyncConnection.connect(**parameters)

        def open_session() -> psycopg.Connection[Any]:
            return psycopg.connect(**self._parameters(application_name, {}))

        try:
            answer = await (await connection.execute(BACKEND)).fetchone()
            if answer != (connection.info.backend_pid,):
                await asyncio.to_thread(expect_kept_sessions, open_session, self.name)
            await connection.execute(pinning())
        except BaseException:
            await connection.close()
            raise
        return connection

    def _parameters(self, application_name: str, more: Mapping[str, Any]) -> dict[str, Any]:
        ours = {"application_name": application_name, "autocommit": True, "prepare_threshold": None}
        return {**_DEFAULTS, **of_the_primary(self.address.parameters()), **more, **ours}

    def pool(self, application_name: str) -> Engine:
        """Returns a small pool. Each connection is tested before use, so that a restart of the server causes no
        error."""

        def connect() -> psycopg.Connection[Any]:
            connection = self.connect(application_name)
            connection.autocommit = False
            return connection

        return create_engine(
            "postgresql+psycopg://",
            creator=connect,
            poolclass=QueuePool,
            pool_size=1,
            max_overflow=3,
            pool_timeout=BUSY_SECONDS,
            pool_pre_ping=True,
            hide_parameters=True,
        )


# -- Errors of the state database: always a `PgetlError`, never a driver's exception. ----------------------------------
#
# The message names host and database and contains the server's primary message; never the URI, a password, or the
# values of a statement. Trouble that may pass is `STORE`, which is retried in place. What will not pass by itself keeps
# its kind: a wrong password, a missing privilege.

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
    """Raises exceptions of the drivers inside the block as a `PgetlError` about the database at `place`."""
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
    """Translates an error without a SQLSTATE: there was no connection, or it broke."""
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


# -- The time of the store's clock, without a query each time. ---------------------------------------------------------
#
# Due times are stored by one machine and read by another, and their clocks differ; so both use the store's clock.
# Between two queries this machine's monotonic clock is used, which is never set.

_VALID_SECONDS = 60.0


class StoreClock:
    """`ask`: returns the seconds since the Unix epoch by the clock of the store's server. While the server is away its
    clock is assumed to go on; it must have answered once."""

    def __init__(self, ask: Callable[[], float], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._monotonic = monotonic
        self._ahead: float | None = None
        self._asked_at = 0.0

    def now(self) -> float:
        now = self._monotonic()
        if self._ahead is None or now - self._asked_at >= _VALID_SECONDS:
            self._ahead = self._measured(self._ahead)
            self._asked_at = now
        return self._monotonic() + self._ahead

    def _measured(self, known: float | None) -> float:
        before = self._monotonic()
        try:
            answer = self._ask()
        except PgetlError:
            if known is None:
                raise
            return known
        return answer - (before + self._monotonic()) / 2


# -- Migration of the tables of the Postgres store to the form that this release requires. -----------------------------
#
# Safe to call from any number of processes at once: the first to get the advisory lock migrates, in one transaction
# with the creation of the schema; the others find it done. A database that is up to date costs two short queries; then
# Alembic is not imported, and no privilege but to read is needed. A role that creates the schema needs CREATE on the
# database and nothing else.
#
# There is no downgrade to an older form; `withdraw` removes the tables altogether if no pipeline uses them. A database
# that a newer release has migrated is refused, because this release cannot know what its columns mean.

SCRIPTS = Path(__file__).with_name("migrations")

_LOCK = text("select pg_advisory_xact_lock(hashtextextended('pgetl: migrations of the state', 0))")
_HAS_SCHEMA = text(f"select to_regnamespace('{SCHEMA}') is not null")
_CREATE_SCHEMA = text(f"create schema {SCHEMA}")
_HAS_VERSION = text(f"select to_regclass('{SCHEMA}.{VERSION_TABLE}') is not null")
_VERSION = text(f"select version_num from {SCHEMA}.{VERSION_TABLE}")

# A role without CREATE does not remove tables: an administrator has made them for it.
_OUR_TABLES = text(f"""
    select to_regclass('{SCHEMA}.pipelines') is not null
       and has_database_privilege(current_database(), 'CREATE')
       and (select pg_has_role(nspowner, 'USAGE') from pg_namespace where nspname = '{SCHEMA}')
       and not exists (select from pg_class where relnamespace = to_regnamespace('{SCHEMA}') and relkind = 'r'
                       and not pg_has_role(relowner, 'USAGE'))
""")
_LOCK_PIPELINES = text(f"set local lock_timeout = '5s'; lock table {SCHEMA}.pipelines in access exclusive mode")
_NO_PIPELINE = text(f"select not exists (select from {SCHEMA}.pipelines)")
_IS_EMPTY = text(f"""
    select not exists (select from pg_depend
                       where refclassid = 'pg_namespace'::regclass and refobjid = to_regnamespace('{SCHEMA}'))
""")

# A process that works for a pipeline of the removed tables must not find the key of that pipeline given to a new one.
_FRESH_KEYS = text(f"""
    select setval(pg_get_serial_sequence('{SCHEMA}.pipelines', 'key'),
                  (extract(epoch from clock_timestamp()) * 1000000)::bigint)
""")

# Alembic keeps the migration that is running in globals of its modules.
_one_at_a_time = threading.Lock()


def migrate(uri: str, role: str = STATE_DATABASE) -> None:
    """Creates or upgrades the tables in the database that the URI names."""
    place = StateDatabase.parse(uri, role)
    engine = place.pool("pgetl migrations")
    try:
        with translated(place):
            with engine.connect() as connection:
                _expect_commits(connection, place)
                if stored_version(connection) == HEAD:
                    return
            with _one_at_a_time, engine.begin() as connection:
                connection.execute(_LOCK)
                _upgrade(connection, place)
    finally:
        engine.dispose()


def _expect_commits(connection: Connection, place: StateDatabase) -> None:
    """Raises an error if commits would wait for missing standbys: opening a store writes."""
    missing = connection.exec_driver_sql(STANDBYS_MISSING).scalar()
    if missing:
        raise PgetlError(ErrorKind.STORE, commits_wait(str(place), missing), remedy=REMEDY)


def withdraw(uri: str, role: str = STATE_DATABASE) -> bool:
    """Removes the tables, and the schema if nothing else is in it, if no pipeline is left and the role could create
    them again. Returns whether they were removed."""
    place = StateDatabase.parse(uri, role)
    engine = place.pool("pgetl migrations")
    try:
        with translated(place), engine.begin() as connection:
            connection.execute(_LOCK)
            return _unused(connection) and _drop(connection)
    finally:
        engine.dispose()


def _unused(connection: Connection) -> bool:
    if not connection.execute(_OUR_TABLES).scalar_one():
        return False
    connection.execute(_LOCK_PIPELINES)
    return bool(connection.execute(_NO_PIPELINE).scalar_one())


def _drop(connection: Connection) -> bool:
    for table in reversed(metadata.sorted_tables):
        connection.execute(text(f"drop table {SCHEMA}.{table.name}"))
    connection.execute(text(f"drop table {SCHEMA}.{VERSION_TABLE}"))
    if connection.execute(_IS_EMPTY).scalar_one():
        connection.execute(text(f"drop schema {SCHEMA}"))
    return True


def stored_version(connection: Connection) -> str | None:
    """Returns the version of the database; None before the first migration."""
    if not connection.execute(_HAS_VERSION).scalar_one():
        return None
    return connection.execute(_VERSION).scalar_one_or_none()


def _upgrade(connection: Connection, place: StateDatabase) -> None:
    """Runs under the lock, and so reads the version again first."""
    version = stored_version(connection)
    if version == HEAD:
        return
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in known:
        raise _too_new(version, place)
    if not connection.execute(_HAS_SCHEMA).scalar_one():
        connection.execute(_CREATE_SCHEMA)
    command.upgrade(config, HEAD)
    if version is None:
        connection.execute(_FRESH_KEYS)


def _too_new(version: str, place: StateDatabase) -> PgetlError:
    return PgetlError(
        ErrorKind.CONFIG,
        f"The state in {place} is at version {version}, newer than this release of pgetl knows ({HEAD}).",
        remedy="Install the newer release that has migrated it.",
    )
