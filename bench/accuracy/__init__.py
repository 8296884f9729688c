"""Accuracy against measured memory, beside every other estimator: see docs/accuracy.md."""
