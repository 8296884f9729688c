"""Runs a training script on fake tensors under MemTracker and prints the peak of its tensors in bytes.

`tracked.py STEPS -m MODULE ARGS` or `tracked.py STEPS SCRIPT ARGS`: in the script's own Python, on a machine
whose PyTorch finds a GPU or takes something for one (without any, PyTorch refuses the backward pass of fake
CUDA tensors). Ended after STEPS optimizer steps; what the script prints goes to standard error.

What a user would have to change in the script is changed from outside: PyTorch cannot move a fake model to
another device ("Couldn't swap Conv2d.weight"), so its tensors are told of the device; MemTracker starts
with the first forward pass; a DataLoader works on real tensors, as its sampler needs their values.
"""

import runpy
import sys
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.mem_tracker import MemTracker
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves
from torch.utils.data import dataloader


class EnoughError(BaseException):
    """The steps that were asked for are done."""


def on_real_tensors(owner, name):
    original = getattr(owner, name)

    def called(*arguments, **named):
        with unset_fake_temporarily():
            return original(*arguments, **named)

    setattr(owner, name, called)


def follow_forwards(tracker, optimizers):
    """Starts MemTracker with the first call of a model; it refuses a second one unless it is reset."""
    original, depth, started = torch.nn.Module.__call__, 0, False

    def called(module, *arguments, **named):
        nonlocal depth, started
        if not started:
            inputs = [leaf for leaf in tree_leaves((arguments, named)) if isinstance(leaf, torch.Tensor)]
            tracker.track_external(module, *optimizers, *inputs)
            tracker.__enter__()
            started = True
        depth += 1
        try:
            return original(module, *arguments, **named)
        finally:
            depth -= 1
            if depth == 0 and not torch.is_grad_enabled():
                tracker.reset_mod_stats()

    torch.nn.Module.__call__ = called


def move_in_place(module, function, recurse=True):
    """Stands in for `Module._apply`, so that an optimizer that was made before keeps its parameters."""
    for child in module.children() if recurse else ():
        move_in_place(child, function)
    for tensors in (module._parameters, module._buffers):
        for name, tensor in tensors.items():
            if tensor is None:
                continue
            moved = function(tensor)
            if moved.dtype == tensor.dtype:
                tensor.fake_device = moved.device
            elif tensors is module._parameters:
                tensors[name] = torch.nn.Parameter(moved, tensor.requires_grad)
            else:
                tensors[name] = moved
    return module


def read_ones():
    """A fake tensor has no value to read: on the GPU, `loss.item()` is 1, and a mask masks nothing."""
    for name, value in (("item", 1), ("__bool__", True)):
        original = getattr(torch.Tensor, name)

        def read(tensor, original=original, value=value):
            fake = isinstance(tensor, FakeTensor) and tensor.is_cuda
            return value if fake else original(tensor)

        setattr(torch.Tensor, name, read)


def leave_weights_alone():
    """Initialisers that draw until all values are within bounds would have to read values."""
    for name in dir(torch.nn.init):
        if name.endswith("_") and not name.startswith("_"):
            setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)


def note_optimizers(optimizers):
    original = torch.optim.Optimizer.__init__

    def made(optimizer, *arguments, **named):
        original(optimizer, *arguments, **named)
        optimizers.append(optimizer)

    torch.optim.Optimizer.__init__ = made


def main():
    wanted, *words = sys.argv[1:]
    tracker, optimizers, seen = MemTracker(), [], 0

    def stepped(*_):
        nonlocal seen
        seen += 1
        if seen >= int(wanted):
            tracker.__exit__(None, None, None)
            raise EnoughError
        tracker.reset_mod_stats()

    register_optimizer_step_post_hook(stepped)
    torch.nn.Module._apply = move_in_place
    read_ones()
    leave_weights_alone()
    note_optimizers(optimizers)
    follow_forwards(tracker, optimizers)
    on_real_tensors(dataloader.DataLoader, "__iter__")
    on_real_tensors(dataloader._BaseDataLoaderIter, "__next__")
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            if words[0] == "-m":
                sys.argv, sys.path[0] = words[1:], str(Path.cwd())
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                sys.argv, sys.path[0] = words, str(Path(words[0]).resolve().parent)
                runpy.run_path(words[0], run_name="__main__")
    except EnoughError:
        peak = tracker.get_tracker_snapshot("peak")
        print(max(parts["Total"] for device, parts in peak.items() if device.type == "cuda"), file=out)
    else:
        sys.exit(f"only {seen} optimizer steps were seen")


main()
