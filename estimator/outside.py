"""What a process takes of the GPU beside PyTorch's allocator: context, code, libraries, NCCL's buffers.

A model with few constants, each of which the catalogue holds together with its source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from estimator.catalog import GPU
from estimator.trace import Trace
from settings import MIB

NCCL = "nccl buffers"  # as the fake device names what it does not know
TWO = 2


@dataclass(frozen=True, slots=True)
class Part:
    """Something outside the allocator: what, how many bytes, and where the number comes from."""

    name: str
    bytes: int
    source: str


def parts(gpu: GPU, trace: Trace) -> tuple[Part, ...]:
    """What one process takes: context, modules (kernels, cuBLAS), libraries (cuDNN) and nccl."""
    source = gpu.source
    launched = trace.kernels > 0 or "cublas" in trace.libraries
    return (
        Part("context", gpu.context_bytes_under(trace.cuda_version), source.context),
        Part("modules", int(gpu.kernels_mib * MIB) if launched else 0, source.kernels),
        Part("libraries", int(gpu.cudnn_mib * MIB) if "cudnn" in trace.libraries else 0, source.cudnn),
        Part("nccl", sum(communicator(gpu, ranks) for ranks in trace.communicators), source.nccl),
    )


def communicator(gpu: GPU, ranks: int) -> int:
    """Bytes of one communicator's buffers: channels x (LL, LL128 and simple buffers of each connection).

    A rank alone connects to nobody.
    """
    if ranks < TWO:
        return 0
    each = gpu.nccl_mib_per_channel_of_two if ranks == TWO else gpu.nccl_mib_per_channel
    return int(gpu.nccl_channels * each * MIB)


def total(outside: Iterable[Part]) -> int:
    """Bytes of all parts."""
    return sum(part.bytes for part in outside)


def together(processes: Sequence[Sequence[Part]]) -> tuple[Part, ...]:
    """The parts of several processes on one GPU, each kind added."""
    added: dict[str, Part] = {}
    for process in processes:
        for part in process:
            earlier = added.get(part.name)
            count = part.bytes + (earlier.bytes if earlier else 0)
            added[part.name] = Part(part.name, count, part.source)
    return tuple(added.values())


def estimated(outside: Iterable[Part]) -> list[Part]:
    """Those that nobody measured on this GPU."""
    return [part for part in outside if part.bytes and not part.source.startswith("measured")]
