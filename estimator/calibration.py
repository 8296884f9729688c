"""A catalogue entry from what was measured on a GPU: pure, the measuring is in `calibrate_cli`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from estimator.catalog import GPU
from settings import MIB

STAGES = ("context", "kernels", "cudnn")  # of the probe, in this order
DIRECTIONS = ("forward", "data", "filter")
MOSTLY = 0.5  # of the copies: from there on a workspace is taken to hold them


class CalibrationError(Exception):
    """Nothing can be measured; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was seen of one GPU. `outside`: bytes beside the allocator after each stage, in order.

    `workspaces`: for each direction, (positions of the image, bytes asked for, bytes of full copies).
    """

    name: str
    memory_bytes: int
    usable_bytes: int
    compute_capability: tuple[int, int]
    sm_count: int
    outside: Mapping[str, int]
    workspaces: Mapping[str, Sequence[tuple[int, int, int]]]
    cuda: str
    where: str  # host, driver, torch, date


def entry(key: str, known: GPU | None, measured: Measured) -> str:
    """The TOML table of this GPU, to be put into the site's `gpus.toml` in the place of the old one."""
    steps = [measured.outside[stage] for stage in STAGES]
    context, kernels, cudnn = (_mib(now - before) for before, now in zip([0, *steps], steps, strict=False))
    major, minor = measured.compute_capability
    source = f"measured on {measured.where}"
    match = known.match if known else ()
    lines = [
        f"[{key}]",
        f"name = {_text(measured.name)}",
        f"match = [{', '.join(map(_text, match))}]",
        f"memory_mib = {measured.memory_bytes // MIB}",
        f"usable_gib = {_usable(measured):.2f}",
        f'compute_capability = "{major}.{minor}"',
        f"sm_count = {measured.sm_count}",
        f"context_mib = {context}",
        f"context_mib_by_cuda = {{{_text(measured.cuda.partition('.')[0])} = {context}}}",
        f"kernels_mib = {kernels}",
        f"cudnn_mib = {cudnn}",
        *(["nccl_channels = " + str(known.nccl_channels)] if known and known.nccl_channels else []),
        f"[{key}.convolutions]",
        *(
            f"{direction}_positions = {copied_from(measured.workspaces.get(direction, ()))}"
            for direction in DIRECTIONS
        ),
        f"[{key}.source]",
        *(
            f"{what} = {_text(source)}"
            for what in (
                "memory", "usable", "compute_capability", "sm_count", "context", "kernels", "cudnn",
                "convolutions",
            )
        ),
        *([f"nccl = {_text(known.source.nccl)}"] if known and known.source.nccl else []),
    ]  # fmt: skip
    if known and known.mig:
        lines += [f"mig = {_text(known.source.mig)}", f"[{key}.mig]"]
        lines += [
            f"{_text(name)} = {{memory_gib = {part.memory_gib}, sm_count = {part.sm_count}}}"
            for name, part in known.mig.items()
        ]
    return "\n".join(lines) + "\n"


def copied_from(rows: Sequence[tuple[int, int, int]]) -> int:
    """The least image (positions) from which on all workspaces hold the copies; 0: they never do."""
    least = 0
    for positions, asked, copies in sorted(rows, reverse=True):
        if asked < MOSTLY * copies:
            break
        least = positions
    return least


def _usable(measured: Measured) -> float:
    """In GiB, rounded down to two digits: no more than the board has."""
    return int(100 * min(measured.usable_bytes, measured.memory_bytes) / 1024**3) / 100


def _mib(count: int) -> int:
    return max(0, -(-count // MIB))


def _text(value: str) -> str:
    return json.dumps(value)  # strings of JSON are strings of TOML
