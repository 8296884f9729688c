"""The prolog's work, in its detached process: write the job down, ask NVML, become the sampler."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import prolog
from prolog import detach, sampler
from prolog.jobdir import GpuBefore, JobDir, JobRecord, with_gpus
from prolog.node import Job, Node
from prolog.nvml import GpuReader, NvmlProblem, NvmlReader, find
from prolog.processes import Process, start_ticks
from prolog.prolog import DEADLINE_S, Ready


def begin(node: Node, job: Job, ready: Ready) -> None:
    """Measures the job from now on; calls `ready` when the job may start. Does not return if all is well."""
    measurement = node.settings.measurement
    if not measurement.enabled or not job.gpus:
        return
    folder = JobDir(measurement.run_dir, job.job_id)
    record = JobRecord(
        measurement_id=str(uuid4()),
        job_id=job.job_id,
        user_id=job.user_id,
        cluster=job.cluster,
        node=job.node,
        started_at=time.time(),
        sampler=Process(os.getpid(), start_ticks(os.getpid()) or 0),
        gpus=tuple(GpuBefore(name) for name in job.gpus),
        problems=node.problems,
    )
    folder.create(record)  # before NVML, which may hang: the epilog shall find this process
    if folder.ended_since(record.started_at - detach.age_s()):  # nobody would end the sampler
        folder.remove()
        return
    folder.mark_shared()
    gpus, problems = look_before(NvmlReader, job.gpus, record.started_at)
    if detach.age_s() > DEADLINE_S:  # the job runs already, perhaps without accounting at first
        gpus = tuple(replace(gpu, accounting=False) for gpu in gpus)
    for problem in problems:
        node.log(f"prolog: job {job.job_id}: {problem}")
    if folder.record() != record:  # the job has ended meanwhile, or was started anew
        return
    folder.write_record(with_gpus(record, gpus, problems))
    command = sampler.command(
        folder.path, measurement.sample_interval_s, measurement.spool_dir, measurement.fallback_dir
    )
    ready()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # a job that ends at once is sampled once, too
    os.execve(command[0], command, _environment())  # noqa: S606


def look_before(
    open_reader: Callable[[], GpuReader], names: tuple[str, ...], started_at: float
) -> tuple[tuple[GpuBefore, ...], tuple[str, ...]]:
    """The GPUs as they were at `started_at`, with accounting switched on; and what was wrong with them."""
    try:
        reader = open_reader()
    except NvmlProblem as problem:
        return tuple(GpuBefore(name) for name in names), (str(problem),)
    problems: list[str] = []
    gpus = tuple(_before(reader, name, started_at, problems) for name in names)
    reader.close()
    return gpus, tuple(problems)


def _before(reader: GpuReader, name: str, started_at: float, problems: list[str]) -> GpuBefore:
    try:
        gpu = find(reader, name)
    except NvmlProblem as problem:
        problems.append(f"GPU {name}: {problem}")
        return GpuBefore(name)
    if gpu.mig:
        return GpuBefore(name, gpu)
    try:
        if not reader.accounting(gpu.uuid):
            reader.enable_accounting(gpu.uuid)
        accounts = {
            account.pid: account.start_us
            for account in reader.accounts(gpu.uuid)
            if account.start_us < started_at * 1e6  # NVML may take its time, the job not wait for it
        }
    except NvmlProblem as problem:
        problems.append(f"GPU {name}: no accounting: {problem}")
        return GpuBefore(name, gpu)
    return GpuBefore(name, gpu, accounting=True, accounts=accounts)


def _environment() -> dict[str, str]:
    """Ours, with the folder that this package lies in on Python's path."""
    root = str(Path(prolog.__file__ or "").resolve().parent.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
