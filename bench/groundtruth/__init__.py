"""Measured truth: what training jobs really take on a GPU, as NVML and PyTorch tell it."""
