"""What `gpumem calibrate` runs in an interpreter with PyTorch: library after library, then convolutions.

Each stage prints a JSON object and waits for a line, so that the parent can ask NVML in between.
Python >= 3.9, the standard library and torch.
"""

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

EDGES = (8, 12, 16, 20, 24, 32, 48, 64, 96)
BATCH, CHANNELS = 8, 64


def tell(**values: Any) -> None:
    """Prints a line and waits for the parent."""
    print(json.dumps(values), flush=True)
    sys.stdin.readline()


def main() -> None:
    """All stages."""
    import torch
    import torch.version

    torch.empty(0, device="cuda")
    torch.cuda.synchronize()
    about = torch.cuda.get_device_properties(0)
    facts = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "compute_capability": [about.major, about.minor],
        "sm_count": about.multi_processor_count,
        "usable_bytes": torch.cuda.mem_get_info(0)[1],
    }

    def stage(name: str) -> None:
        torch.cuda.synchronize()
        tell(stage=name, reserved=torch.cuda.memory_reserved(), **facts)

    stage("context")
    x = torch.randn(1024, 1024, device="cuda", requires_grad=True)
    with torch.autocast("cuda", torch.float16):
        hidden = torch.nn.functional.gelu(x @ x)
        loss = torch.nn.functional.cross_entropy(hidden, torch.arange(1024, device="cuda"))
    (loss + (x @ x).softmax(1).mean()).backward()
    torch.optim.AdamW([x], foreach=True).step()
    stage("kernels")
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU(),
        torch.nn.Conv2d(64, 128, 3, stride=2, padding=1), torch.nn.Conv2d(128, 128, 1),
        torch.nn.Conv2d(128, 128, 3, padding=1, groups=128),
    ).cuda()  # fmt: skip
    for half in (False, True):
        with torch.autocast("cuda", torch.float16, enabled=half):
            layers(torch.randn(8, 3, 64, 64, device="cuda")).float().sum().backward()
    stage("cudnn")
    tell(workspaces=workspaces(torch))


def workspaces(torch: Any) -> dict[str, list[list[int]]]:
    """For each direction: positions of the image, bytes of the workspace, bytes of copies."""
    found: dict[str, list[list[int]]] = {"forward": [], "data": [], "filter": []}
    for edge in EDGES:
        torch.cuda.empty_cache()
        x = torch.randn(BATCH, CHANNELS, edge, edge, device="cuda")
        w = torch.randn(CHANNELS, CHANNELS, 3, 3, device="cuda")
        y = convolve(torch, x, w)
        image, filters = x.numel() * 4, w.numel() * 4
        both = 2 * image + filters
        calls = (
            ("forward", both, partial(convolve, torch, x, w)),
            ("data", both, partial(backward, torch, x, w, y, [True, False, False])),
            ("filter", 2 * image, partial(backward, torch, x, w, y, [False, True, False])),
        )
        for direction, copies, call in calls:
            found[direction].append([edge * edge, extra(torch, call), copies])
    return found


def convolve(torch: Any, x: Any, w: Any) -> Any:
    """3 x 3, the image keeps its size."""
    return torch.ops.aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)


def backward(torch: Any, x: Any, w: Any, y: Any, mask: list[bool]) -> Any:
    """The gradients that `mask` asks for."""
    return torch.ops.aten.convolution_backward(y, x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)


def extra(torch: Any, call: Callable[[], Any]) -> int:
    """Bytes that a call had allocated at most, beside its results."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    kept = call()
    count = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    del kept
    return int(count)


if __name__ == "__main__":
    main()
