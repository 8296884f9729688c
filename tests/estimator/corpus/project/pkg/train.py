"""Trains, as a module."""

import torch

print(torch.__version__)
