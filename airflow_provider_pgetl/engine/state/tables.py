"""The tables of the Postgres store, in the schema `pgetl` of whatever database the state URI names.

They may lie in the source itself, hence: small rows, no index but the keys, nothing written that did not change, and a
primary key everywhere (a table without one would refuse its updates under a publication FOR ALL TABLES).

Several pipelines share them; `pipelines.key` tells whose a row is, and everything goes when that row goes.
`pipelines.revision` is raised by each change that other processes should hear of, `pipelines.changes` by every change
of what store objects cache; `changes` says of each table, present or deleted, which was the last that concerned it, and
which the last that concerned its schemas and its place in the destination.

`tables.current` points to the newest entry of the table's history, where the state itself is stored, once; each
entry points to its predecessor, and a predecessor that is not there was pruned.

These definitions are what `migrations` has built when it is done, which a test compares; a change here needs a
migration there, and a new `HEAD`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    Double,
    ForeignKeyConstraint,
    Identity,
    Integer,
    MetaData,
    Table,
    Text,
    func,
)
from sqlalchemy.types import TypeDecorator, UserDefinedType

from airflow_provider_pgetl.engine.positions import Boundary

SCHEMA = "pgetl"
HEAD = "0005"
VERSION_TABLE = "schema_version"
COUNTED_KINDS = ("inserts", "updates", "deletes", "truncates")


class PgLsn(UserDefinedType[str]):
    """The type pg_lsn, as text."""

    cache_ok = True
    render_bind_cast = True

    def get_col_spec(self, **_: Any) -> str:
        return "pg_lsn"


class Lsn(TypeDecorator[Boundary]):
    """A boundary, stored so that Postgres can compare it."""

    impl = PgLsn
    cache_ok = True

    def process_bind_param(self, value: Boundary | None, dialect: Dialect) -> str | None:  # noqa: ARG002 (signature)
        return None if value is None else str(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Boundary | None:  # noqa: ARG002 (signature)
        return None if value is None else Boundary.parse(value)


# Not jsonb, which refuses \u0000: an error's text may hold anything.
_JSON = JSON(none_as_null=True)
_TIME = DateTime(timezone=True)

metadata = MetaData(
    schema=SCHEMA,
    naming_convention={
        "pk": "%(table_name)s_pkey",
        "fk": "%(table_name)s_%(referred_table_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_name)s_key",
    },
)


def _of_pipeline() -> Column[int]:
    return Column("pipeline", BigInteger, primary_key=True)


def _of_table() -> tuple[Column[Any], ...]:
    return (
        _of_pipeline(),
        Column("table_schema", Text, primary_key=True),
        Column("table_name", Text, primary_key=True),
    )


def _counted() -> tuple[Column[Any], ...]:
    """How many changes there were from `counted_from` on; null where nothing was counted."""
    return Column("counted_from", Lsn), *(Column(kind, BigInteger) for kind in COUNTED_KINDS)


def _belongs_to_pipeline() -> ForeignKeyConstraint:
    return ForeignKeyConstraint(["pipeline"], [f"{SCHEMA}.pipelines.key"], ondelete="CASCADE")


pipelines = Table(
    "pipelines",
    metadata,
    Column("key", BigInteger, Identity(always=True), primary_key=True),
    Column("id", Text, unique=True, nullable=False),
    Column("instance", Text, nullable=False),
    Column("created", _TIME, server_default=func.now(), nullable=False),
    Column("revision", BigInteger, server_default="0", nullable=False),
    Column("lineage", _JSON),
    Column("owner", Text),
    Column("epoch", BigInteger, server_default="0", nullable=False),
    Column("holder", Text),
    Column("expires", _TIME),
    Column("last_attempt", BigInteger, server_default="0", nullable=False),
    Column("last_generation", BigInteger, server_default="0", nullable=False),
    Column("changes", BigInteger, server_default="0", nullable=False),
    Column("paused", _TIME),
)

tables = Table(
    "tables",
    metadata,
    *_of_table(),
    Column("current", Integer, nullable=False),
    Column("relation", BigInteger),
    Column("membership", BigInteger),
    Column("terms", _JSON),
    Column("high_water", Lsn, server_default="0/0", nullable=False),
    Column("acknowledged", BigInteger, server_default="0", nullable=False),
    Column("marked_attempt", BigInteger, server_default="0", nullable=False),
    *_counted(),
    Column("commit_time", BigInteger),
    _belongs_to_pipeline(),
)

changes = Table(
    "changes",
    metadata,
    *_of_table(),
    Column("change", BigInteger, nullable=False),
    Column("described", BigInteger, nullable=False),
    _belongs_to_pipeline(),
)

history = Table(
    "history",
    metadata,
    *_of_table(),
    Column("entry", Integer, primary_key=True),
    Column("previous", Integer),
    Column("generation", BigInteger, nullable=False),
    Column("attempt", BigInteger),
    Column("copied", Lsn),
    Column("phase", _JSON, nullable=False),
    Column("at", _TIME, server_default=func.clock_timestamp(), nullable=False),
    ForeignKeyConstraint(
        ["pipeline", "table_schema", "table_name"],
        [f"{SCHEMA}.tables.pipeline", f"{SCHEMA}.tables.table_schema", f"{SCHEMA}.tables.table_name"],
        ondelete="CASCADE",
    ),
)

progress = Table(
    "progress",
    metadata,
    _of_pipeline(),
    Column("worker", Text, primary_key=True),
    Column("boundary", Lsn, nullable=False),
    Column("quiet_from", Lsn),
    Column("commit_lsn", Lsn),
    Column("xid", BigInteger),
    Column("commit_time", BigInteger),
    Column("owned_lsn", Lsn),
    Column("owned_xid", BigInteger),
    Column("owned_time", BigInteger),
    Column("server", BigInteger),
    _belongs_to_pipeline(),
)

attempts = Table(
    "attempts",
    metadata,
    _of_pipeline(),
    Column("attempt", BigInteger, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("expires", _TIME, nullable=False),
    _belongs_to_pipeline(),
)

completions = Table(
    "completions",
    metadata,
    _of_pipeline(),
    Column("run", Text, primary_key=True),
    Column("task", Text, primary_key=True),
    Column("at", _TIME, nullable=False),
    _belongs_to_pipeline(),
)

announced = Table(
    "announced",
    metadata,
    *_of_table(),
    Column("position", Text, nullable=False),
    Column("run", Text, nullable=False),
    *_counted(),
    _belongs_to_pipeline(),
)

lags = Table(
    "lags",
    metadata,
    _of_pipeline(),
    Column("bytes", BigInteger, nullable=False),
    Column("seconds", Double, nullable=False),
    Column("at", _TIME, nullable=False),
    _belongs_to_pipeline(),
)

table_schemas = Table(
    "table_schemas",
    metadata,
    *_of_table(),
    Column("valid_from", Lsn, primary_key=True),
    Column("definition", _JSON, nullable=False),
    _belongs_to_pipeline(),
)

destination_tables = Table(
    "destination_tables",
    metadata,
    *_of_table(),
    Column("destination_schema", Text, nullable=False),
    Column("destination_name", Text, nullable=False),
    Column("snapshot", Lsn, nullable=False),
    Column("applied", Boolean, nullable=False),
    Column("details", _JSON, nullable=False),
    _belongs_to_pipeline(),
)
