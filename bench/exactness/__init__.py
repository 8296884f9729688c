"""Estimates held against byte-exact peaks that others have measured and published."""
