"""With a high-water mark, what was counted up to there; with an announcement, what was counted by then."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_provider_pgetl.engine.state.schema import PgLsn

revision = "0004"
down_revision = "0003"

_SCHEMA = "pgetl"


def upgrade() -> None:
    for table in ("tables", "announced"):
        op.add_column(table, sa.Column("counted_from", PgLsn()), schema=_SCHEMA)
        for name in ("inserts", "updates", "deletes", "truncates"):
            op.add_column(table, sa.Column(name, sa.BigInteger), schema=_SCHEMA)
    op.add_column("tables", sa.Column("commit_time", sa.BigInteger), schema=_SCHEMA)
