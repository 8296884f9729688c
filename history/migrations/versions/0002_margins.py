"""What a job was promised, and whether it ran out of memory: margins are learned from it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this revision."""
    op.add_column("decisions", sa.Column("needed_bytes", sa.BigInteger))
    op.add_column("decisions", sa.Column("promised_bytes", sa.BigInteger))
    op.add_column("decisions", sa.Column("limit_bytes", sa.BigInteger))
    op.add_column("decisions", sa.Column("out_of_memory", sa.Boolean))
    op.create_index("ix_measurements_ended_at", "measurements", ["ended_at"])
