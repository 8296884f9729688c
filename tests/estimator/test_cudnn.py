"""Workspaces of convolutions and of attention are what the real cuDNN says for a GPU that is not there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from estimator.tracer import device
from tests.estimator.test_fake_cuda import MIB, TORCH, needs_torch, run_torch

LIBRARY, VERSION = device.cudnn_of(str(Path(TORCH.origin).parent)) if TORCH else ("", 0)
FLOAT, HALF = 0, 2
MOST_OF_PRODUCT = MIB  # bytes: no more for filters of one position
# CUDA C++ Programming Guide, "Technical specifications per compute capability"
COMMON = {
    "maxGridSize": [2**31 - 1, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "maxThreadsPerBlock": 1024,
    "regsPerBlock": 65536, "maxRegistersPerSM": 65536, "warpSize": 32, "maxSharedMemoryPerBlock": 48 * 1024,
    "reservedSharedMemoryPerBlock": 1024, "maxCtasPerSM": 32, "maxThreadsPerSM": 2048, "totalGlobalMem": 80 << 30,
    "supportCoopLaunch": 1, "isTccDriver": 0, "pciDeviceId": 0, "cudaDeviceId": 0, "smCountOrigin": 0,
    "smClockRateKHz": 1, "memClockRateKHz": 1, "l2CacheSize": 1, "driverVer": 13000, "deviceName": "",
}  # fmt: skip
GPUS = {
    "H100": COMMON
    | {"deviceVer": 900, "multiProcessorCount": 132, "maxSharedMemoryPerBlockOptin": 227 * 1024},
    "A100": COMMON
    | {"deviceVer": 800, "multiProcessorCount": 108, "maxSharedMemoryPerBlockOptin": 163 * 1024},
}
CONVOLUTIONS: list[dict[str, Any]] = [
    {"image": [16, 64, 56, 56], "filter": [64, 64, 3, 3], "type": FLOAT, "last": False},
    {"image": [16, 64, 56, 56], "filter": [64, 64, 3, 3], "type": HALF, "last": True},
    {"image": [16, 3, 112, 112], "filter": [64, 3, 7, 7], "type": FLOAT, "last": False},
    {"image": [16, 256, 14, 14], "filter": [512, 256, 1, 1], "type": HALF, "last": False},
    {"image": [16, 104, 28, 28], "filter": [104, 8, 3, 3], "type": FLOAT, "last": False},
]
TRAINING = f"""
def workspaces(image, filter, type, last):
    layout = torch.channels_last if last else torch.contiguous_format
    x, w = (torch.empty(sizes, device="cuda", dtype=(torch.float16 if type == {HALF} else torch.float32))
            .to(memory_format=layout) for sizes in (image, filter))
    options = ([1, 1], [edge // 2 for edge in filter[2:]], [1, 1], False, [0, 0], image[1] // filter[1])
    def extra(call):
        before = len(fake.events())
        call()
        return max([e.size for e in fake.events()[before:] if e.kind == device.DNN_WORKSPACE], default=0)
    y = torch.ops.aten.convolution(x, w, None, *options)
    def backward(*mask):
        return torch.ops.aten.convolution_backward(y, x, w, None, *options, list(mask))
    return [extra(lambda: torch.ops.aten.convolution(x, w, None, *options)),
            extra(lambda: backward(True, False, False)), extra(lambda: backward(False, True, False))]
"""
ATTENTION = """
from torch.nn.attention import SDPBackend, sdpa_kernel
def asked(call):
    before = len(fake.events())
    result = call()
    return sum(e.size for e in fake.events()[before:] if e.kind == device.ATTENTION_WORKSPACE), result
def attention(shape, causal=False, half=False, heads_last=False, mask=None, dropout=0.0, **_):
    batch, heads, shared, queries, keys, width, of_values = shape
    def tensor(*sizes):
        made = torch.empty(sizes, device="cuda", dtype=torch.float16 if half else torch.bfloat16)
        return (made.transpose(1, 2).contiguous().transpose(1, 2) if heads_last else made).requires_grad_()
    q, k = tensor(batch, heads, queries, width), tensor(batch, shared, keys, width)
    v = tensor(batch, shared, keys, of_values)
    if mask:
        mask = {"each head": lambda: tensor(batch, heads, queries, keys).detach(),
                "one": lambda: tensor(1, 1, queries, keys).detach(),
                "boolean": lambda: torch.ones(batch, 1, queries, keys, device="cuda", dtype=torch.bool)}[mask]()
    forward, y = asked(lambda: F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=causal, enable_gqa=heads != shared))
    return forward, asked(lambda: y.backward(y.detach()))[0]
"""
POINTS = json.loads((Path(__file__).parent / "attention_workspaces.json").read_text())["points"]
needs_cudnn = pytest.mark.skipif(
    VERSION < device.DEVICELESS, reason="no cuDNN beside PyTorch that answers without a device"
)


def asked(gpu: str) -> list[list[list[int]]]:
    """By convolution and direction: the workspaces of the plans that cuDNN itself names, best first."""
    done = subprocess.run(
        [sys.executable, Path(__file__).parent / "deviceless_cudnn.py", LIBRARY],
        input=json.dumps({"properties": GPUS[gpu], "convolutions": CONVOLUTIONS}),
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return json.loads(done.stdout)


@needs_torch
@needs_cudnn
@pytest.mark.parametrize("gpu", GPUS)
def test_a_convolution_takes_the_workspace_of_the_plan_that_cudnn_names_first(gpu: str) -> None:
    report = run_torch(
        TRAINING + f"report['found'] = [workspaces(**one) for one in {CONVOLUTIONS!r}]\n", first=gpu
    )
    assert report["unknown"] == []
    for convolution, found, plans in zip(CONVOLUTIONS, report["found"], asked(gpu), strict=True):
        if convolution["filter"][2:] == [1, 1]:
            assert max(found) <= MOST_OF_PRODUCT < min(one[0] for one in plans)
        else:
            assert found == [one[0] for one in plans], convolution


@needs_torch
@needs_cudnn
def test_benchmarking_tries_the_plans_that_cudnn_names() -> None:
    tried = 10  # torch.backends.cudnn.benchmark_limit
    report = run_torch(
        f"torch.backends.cudnn.benchmark = True\n{TRAINING}report['found'] = workspaces(**{CONVOLUTIONS[0]!r})\n",
        first="A100",
    )
    forward, *backward = asked("A100")[0]
    # the first forward pass has tried, and chosen the one that copies the least
    assert report["found"] == [min(forward[:tried]), *(max(plans[:tried]) for plans in backward)]


@needs_torch
@pytest.mark.parametrize("gpu", ["A100", "H100", "B200"])
def test_an_attention_takes_the_workspace_that_cudnn_asked_for(gpu: str) -> None:
    points = [point for point in POINTS if gpu in point["asked"]]
    report = run_torch(
        f"{ATTENTION}with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):\n"
        f"    report['found'] = [attention(**point) for point in {points!r}]\n",
        first=gpu,
    )
    assert (report["unknown"], report["invented"]) == ([], ["cudnn attention workspace"])
    for point, found in zip(points, report["found"], strict=True):
        forward, backward = point["asked"][gpu]
        assert found[1] == backward, point
        if point["shape"][3] == 1:  # the keys of a single query are shared among multiprocessors
            assert abs(found[0] - forward) < MIB, point
        else:
            assert found[0] == forward, point


@needs_torch
def test_attention_is_cudnns_on_an_h100_and_leaves_the_real_cudnn_alone() -> None:
    grouped = [2, 8, 2, 512, 512, 64, 64]
    expanded = 2 * 8 * 512 * 64 * 2  # bytes of the gradient of keys, or values, for each head of the queries
    rows = 2 * 8 * 512
    report = run_torch(
        f"""{ATTENTION}
def loaded():
    with open("/proc/self/maps") as maps: return {LIBRARY!r} in maps.read()
torch.cuda.memory._record_memory_history(stacks="python")
report["found"] = attention({grouped!r})
history = torch.cuda.memory._snapshot()["device_traces"][0]
report["most"] = max(event["size"] for event in history if event["action"] == "alloc")
report["loaded"] = [loaded()]
F.conv2d(torch.empty(2, 64, 56, 56, device="cuda"), torch.empty(64, 64, 3, 3, device="cuda"))
report["loaded"].append(loaded())
"""
    )
    assert report["found"] == [256, 2 * expanded + 256]
    # before it, what cuDNN's frontend within PyTorch asks for: the gradient of the queries and a number for each row
    assert report["most"] == rows * 64 * 4 + rows * 4 + 2 * expanded + 256
    assert report["loaded"] == [False, VERSION >= device.DEVICELESS]
