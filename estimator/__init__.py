"""Estimates the GPU memory of a training job, without a GPU."""
