"""With progress, what was seen of the WAL before it; with a high-water mark, the copy attempt whose data it is of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from airflow_provider_pgetl.engine.state.tables import PgLsn

revision = "0003"
down_revision = "0002"

_SCHEMA = "pgetl"


def upgrade() -> None:
    for name, kind in (("quiet_from", PgLsn()), ("commit_lsn", PgLsn()), ("xid", sa.BigInteger)):
        op.add_column("progress", sa.Column(name, kind), schema=_SCHEMA)
    op.add_column("progress", sa.Column("commit_time", sa.BigInteger), schema=_SCHEMA)
    marked = sa.Column("marked_attempt", sa.BigInteger, server_default="0", nullable=False)
    op.add_column("tables", marked, schema=_SCHEMA)
