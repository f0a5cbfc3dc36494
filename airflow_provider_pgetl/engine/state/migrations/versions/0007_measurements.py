"""What the stream has measured, in spans of several lengths."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "measurements",
        sa.Column("pipeline", sa.BigInteger, nullable=False),
        sa.Column("resolution", sa.Integer, nullable=False),
        sa.Column("span", sa.BigInteger, nullable=False),
        sa.Column("lag_bytes", sa.BigInteger, nullable=False),
        sa.Column("lag_seconds", sa.Double, nullable=False),
        sa.Column("changes", sa.BigInteger, nullable=False),
        sa.Column("batches", sa.BigInteger, nullable=False),
        sa.Column("retained_bytes", sa.BigInteger, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("pipeline", "resolution", "span", name="measurements_pkey"),
        sa.ForeignKeyConstraint(
            ["pipeline"], ["pgetl.pipelines.key"], name="measurements_pipelines_fkey", ondelete="CASCADE"
        ),
        schema="pgetl",
    )
