"""Measures what training jobs take on this machine's GPU, and writes a line of JSON for each.

    python -m bench.groundtruth                       all jobs, then the probes
    python -m bench.groundtruth 'resnet*' --jobs 1    some of them, one at a time
    python -m bench.groundtruth --list

Needs an NVIDIA GPU, PyTorch 2.4 or newer with torchvision and transformers, and nvidia-ml-py; nothing of
gpumem is installed. Run it from the top of the repository. Each job is a fresh process. A job that is already
in the file for this GPU and this PyTorch is not run again. No setting of the GPU is changed, and a GPU that
somebody else uses is left alone (--share: others' memory is left to them).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from bench.groundtruth.jobs import Job, matching
from bench.groundtruth.nvml import Meter, NoNvml

GIB = 1024**3
ROOT = Path(__file__).parent.parent.parent
RESULTS = Path(__file__).parent / "results"
PROBES = ("outside", "convolution")
JOB_LIMIT_S = 240
NVML_PERIOD_S = 0.001


@dataclass
class Peaks:
    """What a watching thread has seen of NVML; bytes."""

    by_pid: dict[int, int] = field(default_factory=dict)
    device: int = 0
    samples: int = 0


class Watcher(threading.Thread):
    """Asks NVML for the memory of all processes, as often as it answers."""

    def __init__(self, meter: Meter) -> None:
        super().__init__(daemon=True)
        self._meter, self._done = meter, threading.Event()
        self.peaks = Peaks()

    def run(self) -> None:
        """Samples until `stop`."""
        peaks = self.peaks
        while not self._done.wait(NVML_PERIOD_S):
            for pid, used in self._meter.processes().items():
                peaks.by_pid[pid] = max(used or 0, peaks.by_pid.get(pid, 0))
            peaks.device = max(peaks.device, self._meter.device_bytes())
            peaks.samples += 1

    def stop(self) -> None:
        """Ends the thread."""
        self._done.set()
        self.join()


@dataclass
class Running:
    """A job that has been started."""

    job: Job
    process: subprocess.Popen[bytes]
    out: Path
    log: TextIO
    start: float
    samples: int
    alone: bool


def main() -> int:
    """Runs the jobs that are missing in the results; 0 if none failed."""
    options = _options()
    jobs = matching(options.jobs_wanted)
    if options.list:
        for job in jobs:
            print(job.name)
        return 0
    try:
        meter = Meter(options.gpu)
    except NoNvml as error:
        print(f"groundtruth: {error}", file=sys.stderr)
        return 1
    about = meter.about()
    others = meter.processes()
    if others and not options.share:
        print(
            f"groundtruth: {about['gpu']} is in use by process {next(iter(others))}; --share to go on",
            file=sys.stderr,
        )
        return 1
    torch_version = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.__version__)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    name = f"{about['gpu']}-torch{torch_version}".replace(" ", "-").replace("/", "-").lower()
    out = Path(options.out) if options.out else RESULTS / f"{name}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    done = _done(out)
    jobs = [job for job in jobs if job.name not in done]
    print(
        f"{about['gpu']}, driver {about['driver']}, torch {torch_version}: {len(jobs)} jobs into {out}",
        flush=True,
    )
    runner = Runner(meter, about, out, options, time.monotonic() + 60 * options.minutes)
    failed = runner.run(jobs)
    if not options.jobs_wanted:
        failed += runner.probes(done)
    return 1 if failed else 0


class Runner:
    """Runs jobs, a few at a time, as far as the free memory of the GPU allows."""

    def __init__(
        self, meter: Meter, about: dict[str, Any], out: Path, options: argparse.Namespace, end: float
    ) -> None:
        self._meter, self._about, self._out, self._options, self._end = meter, about, out, options, end
        self._watcher = Watcher(meter)
        self._folder = Path(tempfile.mkdtemp(prefix="groundtruth-"))
        self._idle_bytes = meter.device_bytes()
        self._count = 0

    def run(self, jobs: list[Job]) -> int:
        """Runs all that can be begun in time; returns how many failed."""
        waiting, running, failed = list(jobs), [], 0  # type: list[Job], list[Running], int
        self._watcher.start()
        try:
            while waiting or running:
                if waiting and time.monotonic() > self._end:
                    print(
                        f"groundtruth: out of time, {len(waiting)} jobs are left for another run", flush=True
                    )
                    waiting.clear()
                while waiting and len(running) < self._options.jobs and self._fits(waiting[0], running):
                    for other in running:
                        other.alone = False
                    running.append(self._start(waiting.pop(0), alone=not running))
                time.sleep(0.02)
                for one in [one for one in running if self._ended(one)]:
                    running.remove(one)
                    failed += self._finish(one)
        finally:
            for one in running:
                one.process.kill()
            self._watcher.stop()
        return failed

    def probes(self, done: set[str]) -> int:
        """Runs the probes that are missing, alone on the GPU; returns how many failed."""
        failed = 0
        for probe in PROBES:
            if f"probe-{probe}" in done:
                continue
            command = [sys.executable, "-m", "bench.groundtruth.probe", probe]
            ended = subprocess.run(
                command, cwd=ROOT, env=self._environment(), capture_output=True, text=True, timeout=600
            )
            lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
            failed += ended.returncode != 0
            self._write({
                "job": f"probe-{probe}", "status": "ok" if ended.returncode == 0 else "failed", "rows": lines,
                "error": None if ended.returncode == 0 else ended.stderr[-2000:], **self._facts(command),
            })  # fmt: skip
            print(f"probe {probe}: {len(lines)} rows", flush=True)
        return failed

    def _fits(self, job: Job, running: list[Running]) -> bool:
        if not running:
            return True
        free = self._about["memory_bytes"] - self._idle_bytes
        return sum(one.job.gib for one in running) + job.gib <= 0.8 * free / GIB

    def _start(self, job: Job, alone: bool) -> Running:
        self._count += 1
        out = self._folder / f"{self._count}.json"
        log = (self._folder / f"{self._count}.log").open("w+")
        environment = self._environment() | {"GROUNDTRUTH_OUT": str(out)}
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.groundtruth.train", job.name],
            cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return Running(job, process, out, log, time.monotonic(), self._watcher.peaks.samples, alone)

    def _ended(self, one: Running) -> bool:
        if one.process.poll() is None and time.monotonic() - one.start > JOB_LIMIT_S:
            one.process.kill()
            one.process.wait()
        return one.process.poll() is not None

    def _finish(self, one: Running) -> int:
        peaks, pid = self._watcher.peaks, one.process.pid
        command = ["python", "-m", "bench.groundtruth.train", one.job.name]
        line: dict[str, Any] = {
            "job": one.job.name,
            "status": "ok" if one.process.returncode == 0 and one.out.exists() else "failed",
            "wall_s": round(time.monotonic() - one.start, 2),
            "nvml_peak_sampled": peaks.by_pid.get(pid),
            "nvml_peak_accounted": self._meter.accounted_peak(pid),
            "nvml_device_rise": peaks.device - self._idle_bytes if one.alone else None,
            "nvml_samples": peaks.samples - one.samples,
            **self._facts(command),
        }
        if line["status"] == "ok":
            line |= json.loads(one.out.read_text())
            history = one.out.with_suffix(".history.gz")
            if history.exists():
                kept = self._out.with_name(f"{self._out.stem}.{one.job.name}.history.json.gz")
                kept.write_bytes(history.read_bytes())
                line["history"] = kept.name
        else:
            one.log.seek(0)
            line["error"] = one.log.read()[-2000:]
        one.log.close()
        self._write(line)
        if not any(other for other in self._meter.processes()):
            peaks.device = self._meter.device_bytes()
        peak = line["nvml_peak_sampled"] or line["nvml_device_rise"]
        shown = f"{peak / GIB:8.3f} GiB" if peak else "           -"
        print(f"{line['status']:6} {shown} {line['wall_s']:7.1f} s  {one.job.name}", flush=True)
        return int(line["status"] != "ok")

    def _environment(self) -> dict[str, str]:
        return dict(os.environ) | {"CUDA_VISIBLE_DEVICES": self._about["uuid"], "HF_HUB_OFFLINE": "1"}

    def _facts(self, command: list[str]) -> dict[str, Any]:
        return {key: self._about[key] for key in ("gpu", "driver", "memory_bytes")} | {
            "command": " ".join(command)
        }

    def _write(self, line: dict[str, Any]) -> None:
        with self._out.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _done(out: Path) -> set[str]:
    """The jobs that are in the file and did not fail."""
    if not out.exists():
        return set()
    lines = [json.loads(line) for line in out.read_text().splitlines() if line.strip()]
    return {line["job"] for line in lines if line["status"] == "ok"}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.groundtruth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "jobs_wanted",
        nargs="*",
        metavar="NAME",
        help="names or patterns of jobs; all by default, and the probes",
    )
    parser.add_argument(
        "--out", metavar="FILE", help="results; default: bench/groundtruth/results/GPU-torchVERSION.jsonl"
    )
    parser.add_argument("--gpu", help="index or UUID; default: the first")
    parser.add_argument("--jobs", type=int, default=3, help="jobs at once, memory permitting (default 3)")
    parser.add_argument("--minutes", type=float, default=20, help="no job is begun after this (default 20)")
    parser.add_argument("--share", action="store_true", help="run although others use the GPU")
    parser.add_argument("--list", action="store_true", help="print the names of the jobs and end")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
