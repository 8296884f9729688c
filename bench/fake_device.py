"""Programs on the fake CUDA device without a sandbox around them, with or without the tracer."""

from __future__ import annotations

import json
import os
from pathlib import Path

from estimator import catalog

ROOT = Path(__file__).parent.parent / "estimator"
GPU = "a100-80gb"
MAX_EVENTS = 2_000_000


def environment(folder: Path, trace_steps: int | None = None) -> dict[str, str]:
    """The environment of a program that finds an A100; with `trace_steps`, it leaves a trace in `folder`."""
    gpu = catalog.load().find(GPU)
    settings: dict[str, object] = {
        "library": str(ROOT / "fake_cuda" / "lib" / "libgpumem_cuda.so"),
        "devices": [
            {
                "name": gpu.name, "uuid": "GPU-0", "memory_bytes": gpu.memory_bytes, "index": 0,
                "context_bytes": gpu.context_bytes, "compute_capability": gpu.capability,
                "sm_count": gpu.sm_count,
            }
        ],
        "enforce_limit": False,
        "node_dir": None,
    }  # fmt: skip
    if trace_steps is not None:
        settings["trace"] = {"out_dir": str(folder), "steps": trace_steps, "max_events": MAX_EVENTS}
    file = folder / "tracer.json"
    file.write_text(json.dumps(settings))
    return os.environ | {"PYTHONPATH": str(ROOT / "tracer" / "inject"), "GPUMEM_TRACER": str(file)}
