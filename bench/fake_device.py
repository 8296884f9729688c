"""Programs on the fake CUDA device without a sandbox around them, with or without the tracer."""

from __future__ import annotations

import json
import os
from pathlib import Path

from estimator import catalog
from estimator.dry_run import DryRun, Launch

ROOT = Path(__file__).parent.parent / "estimator"
GPU = "a100-80gb"
MAX_EVENTS = 2_000_000


def environment(
    folder: Path, trace_steps: int | None = None, gpu_name: str = GPU, enforce_limit: bool = False
) -> dict[str, str]:
    """The environment of a program that finds a GPU; with `trace_steps`, it leaves a trace in `folder`.

    With `enforce_limit`, `cudaMalloc` fails where the memory of that GPU ends.
    """
    launch = Launch.of_command(["python"])
    run = DryRun(launch, catalog.load().find(gpu_name), folder, folder, ("GPU-0",), {}, "")
    settings = run.device() | {"enforce_limit": enforce_limit}
    if trace_steps is not None:
        settings["trace"] = {"out_dir": str(folder), "steps": trace_steps, "max_events": MAX_EVENTS}
    file = folder / "tracer.json"
    file.write_text(json.dumps(settings))
    return os.environ | {"PYTHONPATH": str(ROOT / "tracer" / "inject"), "GPUMEM_TRACER": str(file)}
