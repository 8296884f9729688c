"""Alembic migrations of the history database; `history.store.Store.migrate` runs them."""
