"""Measurements: each module is a command (`python -m bench.NAME`) that prints a table."""
