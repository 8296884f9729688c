"""Trains a small transformer; copies on a stream of their own, times with events, captures CUDA graphs."""

import argparse
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Prefetcher:
    """Copies the next batch to the GPU on a side stream while the current one is worked on."""

    def __init__(self, batches, device):
        self.batches, self.device = iter(batches), device
        self.stream = torch.cuda.Stream(device)
        self.ready = torch.cuda.Event()
        self.preload()

    def preload(self):
        self.next = next(self.batches, None)
        if self.next is None:
            return
        with torch.cuda.stream(self.stream):
            self.next = [part.pin_memory().to(self.device, non_blocking=True) for part in self.next]
            self.ready.record(self.stream)

    def __iter__(self):
        while self.next is not None:
            torch.cuda.current_stream().wait_event(self.ready)
            batch = self.next
            for part in batch:
                part.record_stream(torch.cuda.current_stream())
            self.preload()
            yield batch


def make_model(args):
    layer = nn.TransformerEncoderLayer(
        args.width, args.width // 64, 4 * args.width, dropout=0.0, batch_first=True, norm_first=True
    )
    return nn.Sequential(
        nn.Embedding(args.vocabulary, args.width),
        nn.TransformerEncoder(layer, args.depth, enable_nested_tensor=False),
        nn.Linear(args.width, args.vocabulary),
    ).cuda()


def loss_of(model, tokens, target):
    return F.cross_entropy(model(tokens).flatten(0, 1), target.flatten())


def with_streams(args, model, optimizer, batches):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for step, (tokens, target) in enumerate(Prefetcher(batches, "cuda")):
        begin.record()
        loss = loss_of(model, tokens, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        end.record()
        end.synchronize()
        rate = tokens.numel() / (begin.elapsed_time(end) / 1e3)
        print(f"step {step}: loss {loss.item():.3f}, {rate:.0f} tokens/s")
    torch.cuda.synchronize()


def with_graph(args, model, optimizer, batches):
    """Captures a whole training step, as PyTorch's notes on CUDA graphs show it."""
    batches = iter(batches)
    tokens, target = (part.cuda() for part in next(batches))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            loss_of(model, tokens, target).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = loss_of(model, tokens, target)
        loss.backward()
        optimizer.step()
    for step, (new_tokens, new_target) in enumerate(batches):
        start = time.perf_counter()
        tokens.copy_(new_tokens)
        target.copy_(new_target)
        graph.replay()
        print(f"step {step}: loss {loss.item():.3f}, {time.perf_counter() - start:.3f} s")


def with_graphed_callables(args, model, optimizer, batches):
    """Captures the model alone; loss and optimizer stay outside."""
    sample = torch.zeros(args.batch_size, args.context, dtype=torch.long, device="cuda")
    graphed = torch.cuda.make_graphed_callables(model, (sample,))
    for step, (tokens, target) in enumerate(batches):
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(graphed, tokens.cuda(), target.cuda())
        loss.backward()
        optimizer.step()
        print(f"step {step}: loss {loss.item():.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("streams", "graph", "graphed-callables"))
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=8192)
    args = parser.parse_args()
    model = make_model(args).train()
    graphed = args.mode == "graph"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=graphed)
    shape = (args.batch_size, args.context)
    batches = [
        (torch.randint(args.vocabulary, shape), torch.randint(args.vocabulary, shape)) for _ in range(10)
    ]
    modes = {"streams": with_streams, "graph": with_graph, "graphed-callables": with_graphed_callables}
    modes[args.mode](args, model, optimizer, batches)


if __name__ == "__main__":
    main()
