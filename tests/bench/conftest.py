"""The benchmarks are not installed: they are taken from the checkout, and what they measure is not."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
