"""Runs many jobs on the fake CUDA device, untraced, and tells what PyTorch's own allocator counted.

    echo '["timm_train.py", "resnet50d", "--batch", "8"]' | python allocator_peaks.py timm

The arguments are modules to import before anything is run. Each line of the standard input is a command as
JSON; each is run in a fork of this process, so that importing is done once, and answered by a line of JSON:
bytes allocated and reserved at the peak and what is reserved at the end, seconds, or "error".
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys
import time
from typing import Any

import torch

LIMIT_S = 600


def run(command: list[str]) -> dict[str, Any]:
    """Runs one script to its end, in this process."""
    sys.argv = command
    sys.stdout = sys.stderr
    begin = time.process_time()
    found: dict[str, Any] = {}
    try:
        runpy.run_path(command[0], run_name="__main__")
    except torch.cuda.OutOfMemoryError as error:
        found["out_of_memory"] = str(error)[:200]
    except (Exception, SystemExit) as error:
        found["error"] = f"{type(error).__name__}: {error}"[:300]
    return found | {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "reserved_at_end": torch.cuda.memory_reserved(),
        "retries": torch.cuda.memory_stats().get("num_alloc_retries", 0),
        "seconds": round(time.process_time() - begin, 3),
    }


def forked(command: list[str]) -> str:
    """The answer of a child process, or what became of it."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        signal.alarm(LIMIT_S)
        os.write(writing, json.dumps(run(command)).encode())
        os._exit(0)  # nothing of PyTorch's own end is needed
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return text or json.dumps({"error": f"the process ended with {status}"})


def skip_initialisation() -> None:
    """Weights are left as they are: no kernel ever reads them."""

    def leave(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return tensor

    for name in ("normal_", "uniform_", "erfinv_"):
        setattr(torch.Tensor, name, leave)
    torch.nn.init._no_grad_trunc_normal_ = leave  # type: ignore[attr-defined]
    timm_init = sys.modules.get("timm.layers.weight_init")
    if timm_init is not None:
        timm_init._trunc_normal_ = leave  # type: ignore[attr-defined]


def main() -> None:
    """Answers line by line."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    skip_initialisation()
    for line in sys.stdin:
        print(forked(json.loads(line)), flush=True)


if __name__ == "__main__":
    main()
