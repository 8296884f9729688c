"""What lies outside the allocator, and what cuDNN asks for, measured one thing at a time.

    python -m bench.groundtruth.probe outside      memory of the process after each library's first use
    python -m bench.groundtruth.probe convolution  workspaces of convolutions: forward, by data, by weight

Prints one JSON object a line. `outside` is NVML's number of the process minus what PyTorch has reserved.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

# (channels in, channels out, kernel, stride, edge of the image): VGG, ResNet, MobileNet, ConvNeXt, UNet
# fmt: off
SHAPES = (
    (3, 64, 7, 2, 224), (3, 64, 3, 1, 224), (64, 64, 3, 1, 224), (64, 128, 3, 1, 112),
    (128, 128, 3, 1, 112), (128, 256, 3, 1, 56), (256, 256, 3, 1, 56), (256, 512, 3, 1, 28),
    (512, 512, 3, 1, 28), (512, 512, 3, 1, 14), (64, 64, 1, 1, 56), (64, 64, 3, 1, 56),
    (64, 256, 1, 1, 56), (256, 64, 1, 1, 56), (256, 128, 1, 1, 56), (128, 128, 3, 2, 56),
    (256, 512, 1, 2, 56), (512, 128, 1, 1, 28), (128, 512, 1, 1, 28), (256, 256, 3, 2, 28),
    (512, 1024, 1, 2, 28), (1024, 256, 1, 1, 14), (256, 256, 3, 1, 14), (256, 1024, 1, 1, 14),
    (512, 512, 3, 2, 14), (1024, 2048, 1, 2, 14), (2048, 512, 1, 1, 7), (512, 512, 3, 1, 7),
    (512, 2048, 1, 1, 7), (3, 64, 3, 1, 86), (64, 64, 3, 1, 86), (64, 128, 3, 1, 43),
    (128, 256, 3, 1, 21), (256, 512, 3, 1, 10), (3, 96, 4, 4, 224), (3, 768, 16, 16, 224),
    (3, 64, 3, 1, 256), (1024, 512, 3, 1, 32),
)
DEPTHWISE = (  # channels, kernel, stride, edge
    (32, 3, 1, 112), (96, 3, 2, 112), (144, 3, 1, 56), (192, 3, 1, 28), (384, 3, 1, 14), (96, 7, 1, 56),
    (384, 7, 1, 14),
)
# fmt: on
BATCHES = (8, 64, 256)


def outside() -> Iterator[dict[str, Any]]:
    """The memory outside the allocator as one library after the other is used for the first time."""
    import torch

    from bench.groundtruth.nvml import Meter

    meter = Meter(os.environ.get("CUDA_VISIBLE_DEVICES"))
    before = meter.device_bytes()

    def told(what: str) -> dict[str, Any]:
        torch.cuda.synchronize()
        reserved = torch.cuda.memory_reserved()
        process, device = meter.process_bytes(os.getpid()), meter.device_bytes()
        return {
            "probe": "outside", "after": what, "nvml_process": process, "nvml_device_rise": device - before,
            "reserved": reserved, "outside": (device - before if process is None else process) - reserved,
        }  # fmt: skip

    torch.empty(0, device="cuda")
    yield told("context")
    x = torch.randn(1024, 1024, device="cuda")
    yield told("first kernel")
    (x @ x).sum()
    yield told("cublas fp32")
    h = x.half()
    (h @ h).sum()
    (x.bfloat16() @ x.bfloat16()).sum()
    yield told("cublas fp16 and bf16")
    image = torch.randn(8, 64, 56, 56, device="cuda", requires_grad=True)
    layer = torch.nn.Conv2d(64, 64, 3, padding=1, device="cuda")
    layer(image).sum().backward()
    yield told("cudnn convolution")
    with torch.autocast("cuda", torch.float16):
        layer(image).sum().backward()
    yield told("cudnn convolution fp16")
    q = torch.randn(4, 12, 512, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
    yield told("attention")
    torch.nn.LSTM(256, 256, 2, device="cuda")(torch.randn(32, 16, 256, device="cuda"))[0].sum().backward()
    yield told("cudnn lstm")
    torch.fft.fft(x)
    yield told("cufft")
    torch.linalg.qr(x)
    yield told("cusolver")
    parameter = torch.nn.Parameter(x.clone())
    parameter.grad = x
    torch.optim.AdamW([parameter], foreach=True).step()
    yield told("optimizer foreach")
    torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:29577", rank=0, world_size=1)
    torch.distributed.all_reduce(x)
    yield told("nccl, one rank")


def convolution() -> Iterator[dict[str, Any]]:
    """Bytes of cuDNN's workspace for each shape, batch, type, layout and way of choosing the algorithm."""
    import torch

    def workspace(call: Callable[[], Any]) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        kept = call()
        stats = torch.cuda.memory_stats()
        del kept
        return int(stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"])

    cases = [(i, o, k, s, e, 1) for i, o, k, s, e in SHAPES]
    cases += [(c, c, k, s, e, c) for c, k, s, e in DEPTHWISE]
    ways = (
        ("fp32", torch.float32, False, False, False),
        ("tf32", torch.float32, True, False, False),
        ("fp32 benchmark", torch.float32, False, True, False),
        ("fp16", torch.float16, False, False, False),
        ("fp16 channels_last", torch.float16, False, False, True),
        ("bf16 channels_last", torch.bfloat16, False, False, True),
        ("fp16 channels_last benchmark", torch.float16, False, True, True),
    )
    for name, dtype, tf32, benchmark, last in ways:
        torch.backends.cudnn.allow_tf32 = tf32
        torch.backends.cudnn.benchmark = benchmark
        layout = torch.channels_last if last else torch.contiguous_format
        for inside, outside_, kernel, stride, edge, groups in cases:
            for batch in BATCHES if not benchmark else (64,):
                if batch * inside * edge * edge > 2**31 / 4:
                    continue
                torch.cuda.empty_cache()
                x = torch.randn(batch, inside, edge, edge, device="cuda", dtype=dtype).contiguous(
                    memory_format=layout
                )
                w = torch.randn(
                    outside_, inside // groups, kernel, kernel, device="cuda", dtype=dtype
                ).contiguous(memory_format=layout)
                geometry = (
                    [stride] * 2,
                    [kernel // 2 if stride < kernel else 0] * 2,
                    [1, 1],
                    False,
                    [0, 0],
                    groups,
                )

                def forward(x: Any = x, w: Any = w, geometry: Any = geometry) -> Any:
                    return torch.ops.aten.convolution(x, w, None, *geometry)

                y = forward()

                def backward(
                    mask: list[bool], x: Any = x, w: Any = w, y: Any = y, geometry: Any = geometry
                ) -> Any:
                    return torch.ops.aten.convolution_backward(y, x, w, None, *geometry, mask)

                found = {"probe": "convolution", "way": name, "batch": batch}
                found |= {
                    "in": inside,
                    "out": outside_,
                    "kernel": kernel,
                    "stride": stride,
                    "edge": edge,
                    "groups": groups,
                }
                try:
                    # what is called twice: the first call may try several algorithms (benchmark)
                    first = workspace(forward)
                    yield found | {
                        "forward_first": first,
                        "forward": workspace(forward),
                        "data": workspace(lambda b=backward: b([True, False, False])),  # type: ignore[misc]
                        "weight": workspace(lambda b=backward: b([False, True, False])),  # type: ignore[misc]
                    }
                except torch.cuda.OutOfMemoryError:
                    yield found | {"error": "out of memory"}


def main() -> int:
    """The probe that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("probe", choices=("outside", "convolution"))
    chosen = {"outside": outside, "convolution": convolution}[parser.parse_args().probe]
    for line in chosen():
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
