"""Run by Alembic: migrates over the connection that `history.store` opened."""

from alembic import context

from history.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
