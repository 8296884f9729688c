"""Which array a measured job was a task of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this revision."""
    op.add_column("measurements", sa.Column("array_job_id", sa.BigInteger))
    op.create_index("ix_measurements_array_job_id", "measurements", ["array_job_id"])
