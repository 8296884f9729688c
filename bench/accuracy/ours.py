"""Our own answers, in two ways that agree: `gpumem estimate`, and the allocator of its fake device.

The second imports PyTorch once and runs each job in a fork, untraced; it is for thousands of jobs. What both
tell of the allocator is kept apart from what lies outside it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import fake_device
from bench.accuracy.cache import Cache
from bench.accuracy.jobs import ROOT, SCRIPTS, Job
from estimator import catalog

ESTIMATE, ALLOCATOR = "estimate", "allocator"
TIMEOUT_S = 500
MODULES = {"timm": ("timm",), "mlp": ("torch._dynamo",), "xmem": ("torchvision", "transformers"), "own": ()}
ANSWERING = ("fake_cuda/*.cpp", "fake_cuda/*.h", "tracer/**/*.py", "allocator/*.py")  # what peaks depend on
VARIANTS = ("start", "before-backward")  # where xMem's rows do not say; the first is the one that counts


@dataclass(frozen=True)
class Raw:
    """What one run of a job said, in bytes; None where it failed, and `reason` says why.

    `outside` is what the product adds for memory outside the allocator. `fits` is false if the GPU has less.
    `seconds` are of the processor: on the clock, other programs on the machine count as well.
    """

    allocated: int | None
    reserved: int | None
    outside: int
    recommended: int | None
    seconds: float
    status: str
    fits: bool = True
    reason: str = ""


def variants(job: Job) -> list[tuple[str, ...]]:
    """The commands that a job may have been: two, where it is not known when gradients were set to None."""
    if job.zero_grad_known or "--zero-grad" not in job.command:
        return [job.command]
    at = job.command.index("--zero-grad") + 1
    return [(*job.command[:at], variant, *job.command[at + 1 :]) for variant in VARIANTS]


def torch_version(python: str) -> str:
    """The PyTorch of an interpreter."""
    code = "from importlib.metadata import version; print(version('torch'))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def estimated(command: Sequence[str], gpu: str, python: str, steps: int | None = None) -> dict[str, Any]:
    """The answer of `gpumem estimate`, as it is kept in the cache; of so many steps, if they are given."""
    words = [
        sys.executable,
        "-m",
        "estimator",
        "estimate",
        "--json",
        "--no-cache",
        "--gpu",
        gpu,
        "--timeout",
        str(TIMEOUT_S),
    ]
    words += ["--steps", str(steps)] if steps else []
    begin = os.times()
    done = subprocess.run(
        [*words, "--", python, *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    end = os.times()
    processor_s = end.children_user + end.children_system - begin.children_user - begin.children_system
    try:
        said = json.loads(done.stdout)
    except ValueError:
        return {"status": "failed", "reason": done.stderr.strip()[-300:]}
    keys = (
        "status", "reason", "allocated_peak_bytes", "reserved_peak_bytes", "outside_allocator_bytes",
        "peak_bytes", "recommended_bytes", "wall_s", "fits", "host_memory_bytes",
    )  # fmt: skip
    return {key: said.get(key) for key in keys} | {"processor_s": round(processor_s, 2)}


class Allocator:
    """A process on the fake device that runs one command after the other, each in a fork."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def peaks(self, command: Sequence[str]) -> dict[str, Any]:
        """What the allocator counted, or "error"; see `scripts/allocator_peaks.py`."""
        assert self._process.stdin and self._process.stdout
        try:
            self._process.stdin.write(json.dumps(list(command)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {"error": "the process that runs the jobs has ended"}
        line = self._process.stdout.readline()
        return dict(json.loads(line)) if line else {"error": "the process that runs the jobs has ended"}


@contextmanager
def allocator(python: str, gpu: str, modules: Sequence[str]) -> Iterator[Allocator]:
    """Starts such a process; it ends with the context."""
    with tempfile.TemporaryDirectory(prefix="gpumem-bench-") as folder:
        environment = fake_device.environment(Path(folder), gpu_name=gpu, enforce_limit=True)
        process = subprocess.Popen(
            [python, SCRIPTS + "/allocator_peaks.py", *modules],
            cwd=ROOT,
            env=environment | {"OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            yield Allocator(process)
        finally:
            process.kill()
            process.wait()


def run_estimates(jobs: Sequence[Job], python: str, cache: Cache) -> None:
    """Estimates what the cache does not have yet."""
    version = torch_version(python)
    rest = [job for job in jobs if not cache.get(ESTIMATE, words(job, variants(job)[0], version))]
    for count, job in enumerate(rest, 1):
        command = variants(job)[0]
        if cache.get(ESTIMATE, words(job, command, version)):  # the same as one before
            continue
        answer = estimated(command, job.gpu, python)
        cache.put(ESTIMATE, words(job, command, version), answer)
        print(f"{count}/{len(rest)} {answer.get('status')} {job.dataset} {job.name}", flush=True)


def run_allocator(jobs: Sequence[Job], python: str, cache: Cache) -> None:
    """Runs on the allocator all variants that the cache has in neither way."""
    version = torch_version(python)
    rest: dict[tuple[str, ...], tuple[Job, Sequence[str]]] = {}
    for job in jobs:
        for command in variants(job):
            key = words(job, command, version)
            if not (cache.get(ALLOCATOR, key) or cache.get(ESTIMATE, key)):
                rest.setdefault(key, (job, command))
    count = 0
    for gpu in sorted({job.gpu for job, _ in rest.values()}):
        with allocator(python, gpu, MODULES[next(iter(rest.values()))[0].dataset]) as device:
            for key, (job, command) in rest.items():
                if job.gpu != gpu:
                    continue
                count += 1
                answer = device.peaks(command)
                cache.put(ALLOCATOR, key, answer)
                if count % 20 == 0 or "error" in answer:
                    error = answer.get("error", "")
                    print(f"{count}/{len(rest)} {job.dataset} {job.name} {error}", flush=True)


def failed(job: Job, version: str, cache: Cache) -> bool:
    """Whether the allocator alone could not run a job."""
    return "error" in (cache.get(ALLOCATOR, words(job, job.command, version)) or {})


def answers(job: Job, version: str, cache: Cache) -> list[Raw | None]:
    """What the cache has of the job: for each variant the estimate, else the allocator's peaks, else None."""
    return [_answer(job, command, version, cache) for command in variants(job)]


def _answer(job: Job, command: Sequence[str], version: str, cache: Cache) -> Raw | None:
    said = cache.get(ESTIMATE, words(job, command, version))
    if said is not None:
        return Raw(
            said.get("allocated_peak_bytes"),
            said.get("reserved_peak_bytes"),
            int(said.get("outside_allocator_bytes") or 0),
            said.get("recommended_bytes"),
            float(said.get("processor_s") or 0.0),
            str(said["status"]),
            said.get("fits") is not False,
            str(said.get("reason") or ""),
        )
    said = cache.get(ALLOCATOR, words(job, command, version))
    if said is None:
        return None
    outside = catalog.load().find(job.gpu).context_bytes
    seconds = float(said.get("seconds", 0.0))
    if "error" in said:
        return Raw(None, None, outside, None, seconds, "failed", reason=str(said["error"]))
    found = Raw(said["allocated"], said["reserved"], outside, None, seconds, "bounded")
    return replace(found, fits=False) if "out_of_memory" in said else found


def words(job: Job, command: Sequence[str], version: str) -> tuple[str, ...]:
    """What an answer depends on, for the cache."""
    return (code_version(), job.gpu, version, *command)


@functools.cache
def code_version() -> str:
    """A hash of the code that peaks come from: answers of another one are not taken from the cache."""
    found = hashlib.sha256()
    for file in sorted(file for pattern in ANSWERING for file in (ROOT / "estimator").glob(pattern)):
        found.update(file.read_bytes())
    return found.hexdigest()[:12]
