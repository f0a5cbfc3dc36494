"""With progress, what was seen of the WAL before it; with a high-water mark, the copy attempt whose data it is of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_provider_pgetl.engine.state.schema import PgLsn

revision = "0003"
down_revision = "0002"

_SCHEMA = "pgetl"


def upgrade() -> None:
    for name in ("quiet_from", "commit_lsn", "owned_lsn"):
        op.add_column("progress", sa.Column(name, PgLsn()), schema=_SCHEMA)
    for name in ("xid", "commit_time", "owned_xid", "owned_time", "server"):
        op.add_column("progress", sa.Column(name, sa.BigInteger), schema=_SCHEMA)
    marked = sa.Column("marked_attempt", sa.BigInteger, server_default="0", nullable=False)
    op.add_column("tables", marked, schema=_SCHEMA)
