"""The results of verifications, with the rows that differed."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

_TABLE = ["pipeline", "table_schema", "table_name"]


def upgrade() -> None:
    op.create_table(
        "verifications",
        sa.Column("pipeline", sa.BigInteger, nullable=False),
        sa.Column("table_schema", sa.Text, nullable=False),
        sa.Column("table_name", sa.Text, nullable=False),
        sa.Column("number", sa.BigInteger, sa.Identity(always=True), nullable=False),
        sa.Column("differs", sa.Boolean, nullable=False),
        sa.Column("result", sa.JSON, nullable=False),
        sa.Column("rows", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint(*_TABLE, "number", name="verifications_pkey"),
        sa.ForeignKeyConstraint(
            _TABLE, [f"pgetl.tables.{key}" for key in _TABLE], name="verifications_tables_fkey", ondelete="CASCADE"
        ),
        schema="pgetl",
    )
