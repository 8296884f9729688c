"""Trains, as far as a launch plan goes."""

import torch

print(torch.__version__)
