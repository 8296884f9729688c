"""Prepares data, without any framework."""

print("prepared")
