"""Programs on the fake CUDA device without a sandbox around them, with or without the tracer."""

from __future__ import annotations

import json
import os
from pathlib import Path

from estimator import catalog

ROOT = Path(__file__).parent.parent / "estimator"
GPU = "a100-80gb"
MAX_EVENTS = 2_000_000


def environment(
    folder: Path, trace_steps: int | None = None, gpu_name: str = GPU, enforce_limit: bool = False
) -> dict[str, str]:
    """The environment of a program that finds a GPU; with `trace_steps`, it leaves a trace in `folder`.

    With `enforce_limit`, `cudaMalloc` fails where the memory of that GPU ends.
    """
    gpu = catalog.load().find(gpu_name)
    settings: dict[str, object] = {
        "library": str(ROOT / "fake_cuda" / "lib" / "libgpumem_cuda.so"),
        "devices": [
            {
                "name": gpu.name, "uuid": "GPU-0", "index": 0,
                "memory_bytes": gpu.usable_bytes if enforce_limit else gpu.memory_bytes,
                "context_bytes": gpu.context_bytes, "compute_capability": gpu.capability,
                "sm_count": gpu.sm_count,
            }
        ],
        "enforce_limit": enforce_limit,
        "node_dir": None,
    }  # fmt: skip
    if trace_steps is not None:
        settings["trace"] = {"out_dir": str(folder), "steps": trace_steps, "max_events": MAX_EVENTS}
    file = folder / "tracer.json"
    file.write_text(json.dumps(settings))
    return os.environ | {"PYTHONPATH": str(ROOT / "tracer" / "inject"), "GPUMEM_TRACER": str(file)}
