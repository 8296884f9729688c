"""Alembic migrations of the history database; `history.store.Store.migrate` runs them.

A change of the tables is a new module in `versions/`, written by hand; a test compares what
they make with the models.
There is no way back: copy the database before an update of gpumem.
"""
