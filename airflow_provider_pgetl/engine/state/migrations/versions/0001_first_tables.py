"""The first tables: pipelines, their tables with history, progress, attempts, lags, completions, schemas, destinations.

Written out, not taken from `state.schema`: a migration says what was, and stays as it is when the tables move on.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from airflow_provider_pgetl.engine.state.schema import PgLsn

revision = "0001"
down_revision = None

_SCHEMA = "pgetl"
_TABLE_KEY = ("pipeline", "table_schema", "table_name")


def upgrade() -> None:
    _create_pipelines()
    _create_tables()
    _create_history()
    _create("progress", _text("worker"), _lsn("boundary"), key=("pipeline", "worker"))
    _create("attempts", _number("attempt"), _text("holder"), _time("expires"), key=("pipeline", "attempt"))
    _create("lags", _number("bytes"), sa.Column("seconds", sa.Double, nullable=False), _time("at"), key=("pipeline",))
    _create("announced", *_table_columns(), _text("position"), _text("run"), key=_TABLE_KEY)
    _create("completions", _text("run"), _text("task"), _time("at"), key=("pipeline", "run", "task"))
    _create(
        "table_schemas",
        *_table_columns(),
        _lsn("valid_from"),
        _json("definition"),
        key=(*_TABLE_KEY, "valid_from"),
    )
    _create(
        "destination_tables",
        *_table_columns(),
        _text("destination_schema"),
        _text("destination_name"),
        _lsn("snapshot"),
        sa.Column("applied", sa.Boolean, nullable=False),
        _json("details"),
        key=_TABLE_KEY,
    )


def _create_pipelines() -> None:
    op.create_table(
        "pipelines",
        sa.Column("key", sa.BigInteger, sa.Identity(always=True), nullable=False),
        _text("id"),
        _text("instance"),
        _time("created", server_default=sa.func.now()),
        _number("revision", server_default="0"),
        _json("lineage", nullable=True),
        _text("owner", nullable=True),
        _number("epoch", server_default="0"),
        _text("holder", nullable=True),
        _time("expires", nullable=True),
        _number("last_attempt", server_default="0"),
        _number("last_generation", server_default="0"),
        sa.PrimaryKeyConstraint("key", name="pipelines_pkey"),
        sa.UniqueConstraint("id", name="pipelines_id_key"),
        schema=_SCHEMA,
    )


def _create_tables() -> None:
    _create(
        "tables",
        *_table_columns(),
        sa.Column("current", sa.Integer, nullable=False),
        _number("relation", nullable=True),
        _number("membership", nullable=True),
        _json("terms", nullable=True),
        _lsn("high_water", server_default="0/0"),
        _number("acknowledged", server_default="0"),
        key=_TABLE_KEY,
    )


def _create_history() -> None:
    op.create_table(
        "history",
        _number("pipeline"),
        *_table_columns(),
        sa.Column("entry", sa.Integer, nullable=False),
        sa.Column("previous", sa.Integer),
        _number("generation"),
        _number("attempt", nullable=True),
        _lsn("copied", nullable=True),
        _json("phase"),
        _time("at", server_default=sa.func.clock_timestamp()),
        sa.PrimaryKeyConstraint(*_TABLE_KEY, "entry", name="history_pkey"),
        sa.ForeignKeyConstraint(
            _TABLE_KEY,
            [f"{_SCHEMA}.tables.{column}" for column in _TABLE_KEY],
            name="history_tables_fkey",
            ondelete="CASCADE",
        ),
        schema=_SCHEMA,
    )


def _create(name: str, *columns: sa.Column[Any], key: tuple[str, ...]) -> None:
    """A table whose rows belong to a pipeline and go with it."""
    op.create_table(
        name,
        _number("pipeline"),
        *columns,
        sa.PrimaryKeyConstraint(*key, name=f"{name}_pkey"),
        sa.ForeignKeyConstraint(
            ["pipeline"], [f"{_SCHEMA}.pipelines.key"], name=f"{name}_pipelines_fkey", ondelete="CASCADE"
        ),
        schema=_SCHEMA,
    )


def _table_columns() -> tuple[sa.Column[Any], ...]:
    return (_text("table_schema"), _text("table_name"))


def _text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _number(name: str, *, nullable: bool = False, server_default: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger, nullable=nullable, server_default=server_default)


def _lsn(name: str, *, nullable: bool = False, server_default: str | None = None) -> sa.Column[Any]:
    return sa.Column(name, PgLsn(), nullable=nullable, server_default=server_default)


def _json(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON, nullable=nullable)


def _time(name: str, *, nullable: bool = False, server_default: Any = None) -> sa.Column[Any]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable, server_default=server_default)
