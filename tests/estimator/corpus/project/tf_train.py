"""Trains with another framework, if that is there."""

import tensorflow

print(tensorflow)
