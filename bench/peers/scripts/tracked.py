"""A model's first steps on fake tensors under MemTracker; prints the peak in bytes.

`tracked.py MODEL STEPS`. The tensors are of the CPU: where there is no GPU, PyTorch's CUDA build refuses the
backward pass of fake CUDA tensors.
"""

import sys

import train
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

name, count = sys.argv[1], int(sys.argv[2])
with FakeTensorMode(allow_non_fake_inputs=True):
    model, optimizer, loss = train.build(name, "cpu")
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        for _ in range(count):
            train.steps(optimizer, loss, 1)
            tracker.reset_mod_stats()  # it refuses a second step otherwise
print(sum(parts["Total"] for parts in tracker.get_tracker_snapshot("peak").values()))
