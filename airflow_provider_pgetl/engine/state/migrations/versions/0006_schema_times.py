"""When each version of a table's schema was recorded; unknown for those from before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("table_schemas", sa.Column("recorded", sa.DateTime(timezone=True)), schema="pgetl")
    op.alter_column("table_schemas", "recorded", server_default=sa.func.now(), schema="pgetl")
