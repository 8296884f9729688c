"""Runs a training script on fake tensors under MemTracker and prints the peak of its tensors in bytes.

`tracked.py STEPS -m MODULE ARGS` or `tracked.py STEPS SCRIPT ARGS`: in the script's own Python, on a machine
whose PyTorch finds a GPU or takes something for one (without any, PyTorch refuses the backward pass of fake
CUDA tensors). Ended after STEPS optimizer steps; what the script prints goes to standard error.
"""

import contextlib
import runpy
import sys
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.optim.optimizer import register_optimizer_step_post_hook


class EnoughError(BaseException):
    """The steps that were asked for are done."""


def main():
    wanted = int(sys.argv[1])
    tracker = MemTracker()
    seen = 0

    def stepped(*_):
        nonlocal seen
        seen += 1
        if seen >= wanted:
            raise EnoughError
        tracker.reset_mod_stats()  # it refuses a second step otherwise

    register_optimizer_step_post_hook(stepped)
    out, sys.stdout = sys.stdout, sys.stderr
    is_module = sys.argv[2] == "-m"
    target = sys.argv[3 if is_module else 2]
    sys.argv = sys.argv[3 if is_module else 2 :]
    sys.path[0] = str(Path.cwd() if is_module else Path(target).resolve().parent)
    with FakeTensorMode(allow_non_fake_inputs=True), tracker, contextlib.suppress(EnoughError):
        if is_module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")
    peak = tracker.get_tracker_snapshot("peak")
    print(
        max((parts["Total"] for device, parts in peak.items() if device.type == "cuda"), default=0), file=out
    )
    if not seen:
        sys.exit("no optimizer step was seen")


torch.manual_seed(0)
main()
