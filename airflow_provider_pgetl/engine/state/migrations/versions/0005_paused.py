"""Since when a pipeline is paused, if it is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("pipelines", sa.Column("paused", sa.DateTime(timezone=True)), schema="pgetl")
