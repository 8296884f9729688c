"""CUDA graphs, streams, events, pinned memory, memory queries."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.Adam(model.parameters(), capturable=True)
static = torch.zeros(64, 1024, device="cuda")


def step() -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss = model(static).square().mean()
    loss.backward()
    optimizer.step()
    return loss


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = step()
start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
for i in range(4):
    batch = torch.randn(64, 1024).pin_memory()
    copied = torch.cuda.Event()
    with torch.cuda.stream(side):
        static.copy_(batch, non_blocking=True)
        copied.record()
    torch.cuda.current_stream().wait_event(copied)
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    print("replay", i, start.elapsed_time(end), torch.cuda.memory_allocated(), torch.cuda.mem_get_info())
