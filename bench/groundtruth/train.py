"""Runs one of the jobs, as a user's script would: it needs no part of gpumem, and is what is estimated, too.

    python -m bench.groundtruth.train resnet50-b64-224-SGD

With GROUNDTRUTH_OUT=FILE what PyTorch and NVML tell at each stage is written there as JSON.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from bench.groundtruth.jobs import Job, find

Stage = Callable[[str], None]


def train(job: Job, stage: Stage) -> None:
    """Trains for `job.steps` steps; `stage` is told when something has come to its end."""
    import torch

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = "benchmark" in job.flags
    torch.backends.cudnn.deterministic = "deterministic" in job.flags
    torch.backends.cuda.matmul.allow_tf32 = "tf32" in job.flags

    from bench.groundtruth.models import build

    task = build(job)
    device = torch.device("cuda")
    torch.empty(0, device=device)
    torch.cuda.synchronize()
    stage("context")

    model = task.model.to(device)
    if "channels_last" in job.flags:
        model = model.to(memory_format=torch.channels_last)
    if job.precision == "pure_bf16":
        model = model.to(torch.bfloat16)
    stage("model")
    optimizer = _optimizer(job, [p for p in model.parameters() if p.requires_grad])
    scaler = torch.amp.GradScaler("cuda", enabled=job.precision == "fp16")
    average = copy.deepcopy(model) if "ema" in job.flags else None
    run: Any = torch.compile(model) if "compile" in job.flags else model

    def on_device(data: Any) -> Any:
        if isinstance(data, torch.Tensor):
            floats = data.is_floating_point()
            data = data.to(device, dtype=torch.bfloat16 if floats and job.precision == "pure_bf16" else None)
            if floats and data.dim() == 4 and "channels_last" in job.flags:
                data = data.to(memory_format=torch.channels_last)
            return data
        return [on_device(item) for item in data]

    def precision() -> AbstractContextManager[Any]:
        kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
        return torch.autocast("cuda", kinds[job.precision]) if job.precision in kinds else nullcontext()

    def evaluate(batch: int) -> None:
        model.eval()
        with torch.no_grad(), precision():
            task.loss(run, on_device(task.batch(batch)))
        model.train()

    model.train()
    for step in range(job.steps):
        if "inference" in job.flags:
            evaluate(job.batch)
            stage(f"forward {step}")
            continue
        if job.zero_grad == "start":
            optimizer.zero_grad()
        for _ in range(4 if "accumulate" in job.flags else 1):
            batch = on_device(task.batch(job.batch))
            with precision():
                loss = task.loss(run, batch)
            stage(f"forward {step}")
            if job.zero_grad == "before_backward":
                optimizer.zero_grad()
            scaler.scale(loss).backward()
            stage(f"backward {step}")
        if "clip" in job.flags:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if job.zero_grad == "after_step":
            optimizer.zero_grad()
        if average is not None:
            with torch.no_grad():
                for mean, value in zip(average.parameters(), model.parameters(), strict=False):
                    mean.lerp_(value, 0.001)
        stage(f"optimizer {step}")
    if "evaluate" in job.flags:
        evaluate(4 * job.batch)
        stage("evaluation")
    torch.cuda.synchronize()
    stage("end")


def _optimizer(job: Job, parameters: list[Any]) -> Any:
    import torch

    options: dict[str, Any] = {"lr": 1e-3}
    if job.optimizer == "SGD":
        options["momentum"] = 0.9
    if "fused" in job.flags:
        options["fused"] = True
    if "foreach_off" in job.flags:
        options["foreach"] = False
    return getattr(torch.optim, job.optimizer)(parameters, **options)


class Measured:
    """Notes at each stage what PyTorch's allocator and NVML say; `write` leaves it in a file."""

    def __init__(self, job: Job, out: Path) -> None:
        self._job, self._out = job, out
        self._stages: list[dict[str, Any]] = []
        self._history = "snapshot" in job.flags
        self._meter: Any = None
        self._start = time.monotonic()

    def stage(self, name: str) -> None:
        """Waits for the GPU and notes the numbers, in bytes."""
        import torch

        from bench.groundtruth.nvml import Meter

        torch.cuda.synchronize()
        if self._meter is None:
            self._meter = Meter(os.environ.get("CUDA_VISIBLE_DEVICES"))
            if self._history:
                torch.cuda.memory._record_memory_history("all", stacks="python", context=None)
        stats = torch.cuda.memory_stats()
        self._stages.append(
            {
                "stage": name,
                "s": round(time.monotonic() - self._start, 3),
                "allocated": stats.get("allocated_bytes.all.current", 0),
                "reserved": stats.get("reserved_bytes.all.current", 0),
                "allocated_peak": stats.get("allocated_bytes.all.peak", 0),
                "reserved_peak": stats.get("reserved_bytes.all.peak", 0),
                "requested_peak": stats.get("requested_bytes.all.peak", 0),
                "retries": stats.get("num_alloc_retries", 0),
                "nvml_process": self._meter.process_bytes(os.getpid()),
                "nvml_device": self._meter.device_bytes(),
            }
        )

    def write(self) -> None:
        """Writes all stages, the versions, and (flag `snapshot`) the history beside them."""
        import torch
        import torch.version

        versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0]}
        versions["cudnn"] = str(torch.backends.cudnn.version())
        for name in ("torchvision", "transformers", "peft"):
            module = sys.modules.get(name)
            if module is not None:
                versions[name] = module.__version__
        if self._history:
            entries = torch.cuda.memory._snapshot()["device_traces"][0]
            columns = {
                key: [entry.get(key, 0) for entry in entries] for key in ("action", "addr", "size", "stream")
            }
            with gzip.open(self._out.with_suffix(".history.gz"), "wt") as file:
                json.dump(columns, file)
        self._out.write_text(json.dumps({"stages": self._stages, "versions": versions}))


def main() -> int:
    """The job that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job")
    job = find(parser.parse_args().job)
    if "expandable" in job.flags:
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    out = os.environ.get("GROUNDTRUTH_OUT")
    if out is None:
        train(job, lambda stage: None)
        return 0
    measured = Measured(job, Path(out))
    train(job, measured.stage)
    measured.write()
    return 0


if __name__ == "__main__":
    sys.exit(main())
