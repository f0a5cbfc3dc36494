"""Bringing the tables of the Postgres store to the form that this release knows.

Safe to call from any number of processes at once: the first to get the advisory lock migrates, in one transaction with
the schema's creation; the others find it done. A database that is up to date costs two short queries, and then neither
Alembic is imported nor any right but to read needed. A role that creates the schema needs CREATE on the database and
nothing else.

There is no way back to an older form. A database that a newer release has migrated is refused, because nobody here can
know what its columns mean.
"""

from __future__ import annotations

import threading
from pathlib import Path

from sqlalchemy import Connection, text

from airflow_provider_pgetl.engine.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.state.connecting import STATE_DATABASE, Place
from airflow_provider_pgetl.engine.state.failures import translated
from airflow_provider_pgetl.engine.state.tables import HEAD, SCHEMA, VERSION_TABLE

SCRIPTS = Path(__file__).with_name("migrations")

_LOCK = text("select pg_advisory_xact_lock(hashtextextended('pgetl: migrations of the state', 0))")
_HAS_SCHEMA = text(f"select to_regnamespace('{SCHEMA}') is not null")
_CREATE_SCHEMA = text(f"create schema {SCHEMA}")
_HAS_VERSION = text(f"select to_regclass('{SCHEMA}.{VERSION_TABLE}') is not null")
_VERSION = text(f"select version_num from {SCHEMA}.{VERSION_TABLE}")

# Alembic keeps the migration under way in globals of its modules.
_one_at_a_time = threading.Lock()


def migrate(uri: str, role: str = STATE_DATABASE) -> None:
    """Create or upgrade the tables in the database that the URI names."""
    place = Place.parse(uri, role)
    engine = place.pool("pgetl migrations")
    try:
        with translated(place):
            with engine.connect() as connection:
                if stored_version(connection) == HEAD:
                    return
            with _one_at_a_time, engine.begin() as connection:
                connection.execute(_LOCK)
                _upgrade(connection, place)
    finally:
        engine.dispose()


def stored_version(connection: Connection) -> str | None:
    """The version that the database is at; None before the first migration."""
    if not connection.execute(_HAS_VERSION).scalar_one():
        return None
    return connection.execute(_VERSION).scalar_one_or_none()


def _upgrade(connection: Connection, place: Place) -> None:
    """Under the lock, and so looking again first."""
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


def _too_new(version: str, place: Place) -> PgetlError:
    return PgetlError(
        ErrorKind.CONFIG,
        f"The state in {place} is at version {version}, newer than this release of pgetl knows ({HEAD}).",
        remedy="Install the newer release that has migrated it.",
    )
