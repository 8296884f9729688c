"""A model's first steps on the CPU under torch.profiler; prints what was allocated and freed, as JSON.

`profiled.py MODEL STEPS`: a list of [address, bytes], bytes negative where memory was given back, in order.
"""

import json
import sys

import train
from torch.profiler import ProfilerActivity, profile

name, count = sys.argv[1], int(sys.argv[2])
with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
    model, optimizer, loss = train.build(name, "cpu")
    train.steps(optimizer, loss, count)
found = []
nodes = list(profiler.profiler.kineto_results.experimental_event_tree())
while nodes:
    node = nodes.pop()
    nodes.extend(node.children)
    if node.tag.name == "Allocation" and node.extra_fields.device.type == "cpu":
        found.append((node.start_time_ns, node.extra_fields.ptr, node.extra_fields.alloc_size))
found.sort(key=lambda event: event[0])
print(json.dumps([event[1:] for event in found]))
