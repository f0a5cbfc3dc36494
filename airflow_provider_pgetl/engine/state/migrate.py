"""Migration of the tables of the Postgres store to the form that this release requires.

Safe to call from any number of processes at once: the first to get the advisory lock migrates, in one transaction with
the creation of the schema; the others find it done. A database that is up to date costs two short queries; then Alembic
is not imported, and no privilege but to read is needed. A role that creates the schema needs CREATE on the database and
nothing else.

There is no downgrade to an older form; `withdraw` removes the tables altogether if no pipeline uses them. A database
that a newer release has migrated is refused, because this release cannot know what its columns mean.
"""

from __future__ import annotations

import threading
from pathlib import Path

from sqlalchemy import Connection, text

from airflow_provider_pgetl.engine.model.errors import ErrorKind, PgetlError
from airflow_provider_pgetl.engine.postgres.sessions import REMEDY, STANDBYS_MISSING, commits_wait
from airflow_provider_pgetl.engine.state.connecting import STATE_DATABASE, StateDatabase, translated
from airflow_provider_pgetl.engine.state.schema import HEAD, SCHEMA, VERSION_TABLE, metadata

SCRIPTS = Path(__file__).with_name("migrations")

_LOCK = text("select pg_advisory_xact_lock(hashtextextended('pgetl: migrations of the state', 0))")
_HAS_SCHEMA = text(f"select to_regnamespace('{SCHEMA}') is not null")
_CREATE_SCHEMA = text(f"create schema {SCHEMA}")
_HAS_VERSION = text(f"select to_regclass('{SCHEMA}.{VERSION_TABLE}') is not null")
_VERSION = text(f"select version_num from {SCHEMA}.{VERSION_TABLE}")

# A role without CREATE does not remove tables: an administrator has made them for it.
_OURS = text(f"""
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
    if not connection.execute(_OURS).scalar_one():
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
