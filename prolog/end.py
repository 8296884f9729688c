"""The epilog's work, in its detached process: stop the sampler, ask NVML again, keep and send the result."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import uuid4

from prolog.jobdir import GpuBefore, JobDir, JobRecord
from prolog.measure import Evidence, use_of
from prolog.node import Job, Node
from prolog.nvml import Account, Gpu, GpuReader, NvmlProblem, NvmlReader, find
from prolog.processes import Process, is_running
from prolog.prolog import Ready
from prolog.sender import keep_trying
from prolog.spool import SpoolProblem
from prolog.tally import Tally

if TYPE_CHECKING:
    from history.wire import GpuMeasurement, Measurement

NVML_PATIENCE_S = 5.0
"""After so long NVML counts as hanging, and what was sampled is taken."""

FLUSH_PATIENCE_S = 30.0
_STOP_PATIENCE_S = 0.3


@dataclass
class AfterJob:
    """What NVML says once the job has ended, by Slurm's names for the GPUs; what is missing is unknown."""

    gpus: dict[str, Gpu] = field(default_factory=dict)
    accounts: dict[str, tuple[Account, ...]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def end(node: Node, job: Job, ready: Ready) -> None:
    """Ends the job's measurement; calls `ready` when slurmd may go on, and sends what waits on this node."""
    if not node.settings.measurement.enabled:
        return
    folder = JobDir(node.settings.measurement.run_dir, job.job_id)
    record = folder.record()
    if record is None:  # on a busy node the prolog may be later than we are
        folder.note_end()
        record = folder.record()
    if record is not None:
        stop(record.sampler)
    names = record.names if record else job.gpus
    after = _patiently(names)
    measurement = assemble(node, job, folder, record, after)
    for problem in measurement.problems:
        node.log(f"epilog: job {job.job_id}: {problem}")
    spool, deliver = node.spool(), node.deliver()
    try:
        spool.store(measurement)
    except SpoolProblem as problem:
        node.log(f"epilog: job {job.job_id}: kept in memory: {problem}")
        folder.remove()
        ready()
        if not keep_trying(measurement, spool, deliver, sleep=time.sleep, clock=time.monotonic):
            node.log(f"epilog: job {job.job_id}: lost: {measurement.model_dump_json()}")
    else:
        folder.remove()
        ready()
    done = spool.flush(deliver, FLUSH_PATIENCE_S)
    if done.left or done.set_aside:
        node.log(f"{done.left} measurements wait, {done.set_aside} set aside: {done.reason}")


def stop(process: Process) -> None:
    """Ends a sampler: with SIGTERM, and soon after with SIGKILL, for NVML may hold it."""
    for number, patience_s in ((signal.SIGTERM, _STOP_PATIENCE_S), (signal.SIGKILL, 0.1)):
        until, told = time.monotonic() + patience_s, False
        while is_running(process):
            if not told:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)
                told = True
            if time.monotonic() > until:
                break
            time.sleep(0.005)


def look_after(open_reader: Callable[[], GpuReader], names: Sequence[str], found: AfterJob) -> None:
    """Fills `found` with what NVML says now."""
    try:
        reader = open_reader()
    except NvmlProblem as problem:
        found.problems.append(str(problem))
        return
    for name in names:
        try:
            gpu = found.gpus[name] = find(reader, name)
            if not gpu.mig and reader.accounting(gpu.uuid):
                found.accounts[name] = tuple(reader.accounts(gpu.uuid))
        except NvmlProblem as problem:
            found.problems.append(f"GPU {name}: {problem}")
    reader.close()


def assemble(node: Node, job: Job, folder: JobDir, record: JobRecord | None, after: AfterJob) -> Measurement:
    """The measurement of the job, from all that is known."""
    from history.wire import Measurement

    tally = folder.tally()
    problems = [*(record.problems if record else node.problems), *after.problems]
    if record is None:
        problems.append("the prolog left no record of this job")
    elif tally is None:
        problems.append("the sampler left nothing")
    elif not tally.ended:
        problems.append("the sampler ended early")
    problems += tally.problems if tally else ()
    gpus = []
    for before in record.gpus if record else tuple(GpuBefore(name) for name in job.gpus):
        gpu, found = _measure_gpu(before, folder, record, tally, after)
        gpus.append(gpu)
        problems += [f"GPU {before.name}: {problem}" for problem in found]
    return Measurement(
        id=record.measurement_id if record else str(uuid4()),
        cluster=job.cluster,
        job_id=job.job_id,
        node=job.node,
        user_id=job.user_id,
        gpus=gpus,
        started_at=datetime.fromtimestamp(record.started_at, UTC) if record else None,
        ended_at=datetime.now(UTC),
        exit_code=job.exit_status,
        samples=tally.samples if tally else None,
        problems=list(dict.fromkeys(problem.replace("\0", "") for problem in problems)),
    )


def _measure_gpu(
    before: GpuBefore, folder: JobDir, record: JobRecord | None, tally: Tally | None, after: AfterJob
) -> tuple[GpuMeasurement, tuple[str, ...]]:
    from history.wire import GpuMeasurement

    sampled = tally.gpus.get(before.name) if tally else None
    gpu = before.gpu or (sampled.gpu if sampled else None) or after.gpus.get(before.name)
    use = use_of(
        Evidence(
            before=before,
            gpu=gpu,
            tally=sampled,
            accounts=after.accounts.get(before.name),
            shared=folder.is_shared(before.name) if record else None,
            started_at=record.started_at if record else None,
        )
    )
    unnamed = f"index:{before.name}" if before.name.isdecimal() else before.name
    return (
        GpuMeasurement(
            uuid=gpu.uuid if gpu else unnamed,
            model=_printable(gpu.model) if gpu else None,
            memory_bytes=gpu.memory_bytes or None if gpu else None,
            peak_bytes=use.peak_bytes,
            source=use.source,
            processes=use.processes,
            shared=use.shared,
        ),
        use.problems,
    )


def _patiently(names: Sequence[str]) -> AfterJob:
    """Asks NVML in a thread of its own, which is left behind if it does not come back."""
    found = AfterJob()
    thread = threading.Thread(target=look_after, args=(NvmlReader, names, found), daemon=True)
    thread.start()
    thread.join(NVML_PATIENCE_S)
    if thread.is_alive():
        return AfterJob(problems=[f"nvml: no answer in {NVML_PATIENCE_S:g} s"])
    return found


def _printable(text: str | None) -> str | None:
    return "".join(c for c in text if c.isprintable())[:255] or None if text else None
