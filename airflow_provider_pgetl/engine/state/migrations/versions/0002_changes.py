"""Which change was the last that concerned a table, so that a store object reads only what it does not know."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_SCHEMA = "pgetl"


def upgrade() -> None:
    op.add_column("pipelines", sa.Column("changes", sa.BigInteger, server_default="0", nullable=False), schema=_SCHEMA)
    op.create_table(
        "changes",
        sa.Column("pipeline", sa.BigInteger, nullable=False),
        sa.Column("table_schema", sa.Text, nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("change", sa.BigInteger, nullable=False),
        sa.Column("described", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "table_schema", "table_name", name="changes_pkey"),
        sa.ForeignKeyConstraint(
            ["pipeline"], [f"{_SCHEMA}.pipelines.key"], name="changes_pipelines_fkey", ondelete="CASCADE"
        ),
        schema=_SCHEMA,
    )
