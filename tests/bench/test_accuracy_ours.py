"""Both ways to our own answers."""

from __future__ import annotations

import sys

from bench.accuracy import ours
from bench.accuracy.jobs import SCRIPTS

GPU, STEPS = "a100-40gb", 16  # steps: more than the script has


def test_the_allocator_alone_says_what_an_estimate_says() -> None:
    command = (f"{SCRIPTS}/xmem_cnn.py", "vgg11", "--batch", "32", "--optimizer", "SGD")
    with ours.allocator(sys.executable, GPU, ["torchvision"]) as device:
        alone = device.peaks(command)
    estimate = ours.estimated(command, GPU, sys.executable, STEPS)
    assert "error" not in alone
    assert alone["allocated"] == estimate["allocated_peak_bytes"]
    assert alone["reserved"] == estimate["reserved_peak_bytes"]
