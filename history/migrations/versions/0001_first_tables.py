"""The first tables: estimates, decisions, measurements."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_CHARSET: dict[str, Any] = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    """To this revision."""
    op.create_table(
        "estimates",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("gpu", sa.String(255)),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("peak_bytes", sa.BigInteger),
        sa.Column("reserved_peak_bytes", sa.BigInteger),
        sa.Column("recommended_bytes", sa.BigInteger),
        sa.Column("shards", sa.Integer),
        sa.Column("detail", sa.JSON, nullable=False),
        sa.Column("inputs", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_estimates"),
        **_CHARSET,
    )
    op.create_index("ix_estimates_fingerprint_created_at", "estimates", ["fingerprint", "created_at"])

    op.create_table(
        "decisions",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("user_id", sa.BigInteger, nullable=False),
        sa.Column("user_name", sa.String(255)),
        sa.Column("job_name", sa.String(255)),
        sa.Column("partition", sa.String(255)),
        sa.Column("script_name", sa.String(255)),
        sa.Column("fingerprint", sa.String(64)),
        sa.Column("asked", sa.String(255)),
        sa.Column("got", sa.String(255)),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(1000)),
        sa.Column("job_id", sa.BigInteger),
        sa.Column("estimate_id", sa.String(32)),
        sa.Column("held_s", sa.Double),
        sa.Column("request", sa.JSON),
        sa.PrimaryKeyConstraint("id", name="pk_decisions"),
        sa.ForeignKeyConstraint(["estimate_id"], ["estimates.id"], name="fk_decisions_estimate_id_estimates"),
        **_CHARSET,
    )
    op.create_index("ix_decisions_job_id_created_at", "decisions", ["job_id", "created_at"])
    op.create_index("ix_decisions_user_id_created_at", "decisions", ["user_id", "created_at"])
    op.create_index("ix_decisions_state", "decisions", ["state"])
    op.create_index("ix_decisions_created_at", "decisions", ["created_at"])

    op.create_table(
        "measurements",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("cluster", sa.String(255)),
        sa.Column("job_id", sa.BigInteger, nullable=False),
        sa.Column("node", sa.String(255), nullable=False),
        sa.Column("user_id", sa.BigInteger),
        sa.Column("started_at", _TIME),
        sa.Column("ended_at", _TIME, nullable=False),
        sa.Column("submitted_before", _TIME, nullable=False),
        sa.Column("exit_code", sa.BigInteger),
        sa.Column("samples", sa.BigInteger),
        sa.Column("problems", sa.JSON, nullable=False),
        sa.Column("received_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_measurements"),
        **_CHARSET,
    )
    op.create_index("ix_measurements_job_id_submitted_before", "measurements", ["job_id", "submitted_before"])
    op.create_index("ix_measurements_user_id_ended_at", "measurements", ["user_id", "ended_at"])

    op.create_table(
        "measured_gpus",
        sa.Column("measurement_id", sa.String(36), nullable=False),
        sa.Column("position", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("uuid", sa.String(255), nullable=False),
        sa.Column("model", sa.String(255)),
        sa.Column("memory_bytes", sa.BigInteger),
        sa.Column("peak_bytes", sa.BigInteger),
        sa.Column("source", sa.String(16)),
        sa.Column("processes", sa.BigInteger),
        sa.Column("shared", sa.Boolean),
        sa.PrimaryKeyConstraint("measurement_id", "position", name="pk_measured_gpus"),
        sa.ForeignKeyConstraint(
            ["measurement_id"],
            ["measurements.id"],
            name="fk_measured_gpus_measurement_id_measurements",
            ondelete="CASCADE",
        ),
        **_CHARSET,
    )
