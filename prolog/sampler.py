"""The sampler: a detached process per job that reads, again and again, who holds how much of its GPUs.

Started by the prolog as `python -m prolog.sampler JOB_DIR INTERVAL_S SPOOL_DIR FALLBACK_DIR`; ended by the
epilog with SIGTERM, or when job.json disappears or is replaced. Light: tens of these run on a busy node.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from prolog.jobdir import JobDir, JobRecord
from prolog.nvml import GpuReader, NvmlProblem, NvmlReader, find
from prolog.processes import JobProcesses, Process
from prolog.spool import waiting
from prolog.tally import GpuTally, Sighting, Tally

SAVE_INTERVAL_S = 1.0
HEARTBEAT_S = 30.0
"""So often the state is saved though only the number of samples has changed."""

REOPEN_S = 10.0
"""So long NVML is left alone after it failed as a whole."""

FLUSH_INTERVAL_S = 60.0

_PASSING = {"not_supported", "no_permission", "insufficient_size", "not_found", "mig"}
"""NVML answered, if with a no: it need not be started again."""


class Sampler:
    """Samples one job's GPUs; every effect is passed in.

    Args:
        names: Slurm's names for the GPUs: indices or UUIDs.
        open_reader: starts NVML, or raises NvmlProblem.
        look_up: the process behind a PID and whether it belongs to the job; None: it has ended.
        save: keeps the tally where the epilog finds it; may raise OSError (it is tried again later).
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        open_reader: Callable[[], GpuReader],
        look_up: Callable[[int], tuple[Process, bool] | None],
        save: Callable[[Tally], None],
        clock: Callable[[], float],
    ) -> None:
        self.tally = Tally(gpus={name: GpuTally() for name in names})
        self._open_reader = open_reader
        self._look_up = look_up
        self._save = save
        self._clock = clock
        self._reader: GpuReader | None = None
        self._open_at = clock()
        self._changed = True
        self._saved_at = float("-inf")

    def step(self) -> None:
        """Takes one sample of every GPU, and saves what is new."""
        now = self._clock()
        if self._reader is None and now >= self._open_at:
            self._open(now)
        if self._reader is not None:
            self._sample(self._reader, now)
        since = now - self._saved_at
        if since >= HEARTBEAT_S or (self._changed and since >= SAVE_INTERVAL_S):
            self._save_now(now)

    def finish(self) -> None:
        """Saves the last state and lets NVML go."""
        self.tally.ended = True
        self._save_now(self._clock())
        if self._reader is not None:
            self._reader.close()

    def _open(self, now: float) -> None:
        try:
            self._reader = self._open_reader()
        except NvmlProblem as problem:
            self._changed |= self.tally.note(str(problem))
            self._open_at = now + REOPEN_S

    def _sample(self, reader: GpuReader, now: float) -> None:
        complete = True
        for name, gpu in self.tally.gpus.items():
            try:
                self._changed |= self._sample_gpu(reader, name, gpu)
            except NvmlProblem as problem:
                complete = False
                self._changed |= self.tally.note(f"GPU {name}: {problem}")
                if problem.kind not in _PASSING:
                    reader.close()
                    self._reader = None
                    self._open_at = now + REOPEN_S
                    break
        self.tally.samples += complete

    def _sample_gpu(self, reader: GpuReader, name: str, tally: GpuTally) -> bool:
        found = tally.gpu is None
        if tally.gpu is None:
            tally.gpu = find(reader, name)
        if tally.gpu.mig:
            return found
        uuid = tally.gpu.uuid
        sightings = []
        for usage in reader.usages(uuid):
            if found_process := self._look_up(usage.pid):
                process, belongs = found_process
                started = _account_start(reader, uuid, process, tally)
                sightings.append(Sighting(process, usage.used_bytes, belongs, started))
        return tally.add(sightings) or found

    def _save_now(self, now: float) -> None:
        try:
            self._save(self.tally)
        except OSError as error:
            self.tally.note(f"sampler: {error}")
        else:
            self._changed = False
        self._saved_at = now


def _account_start(reader: GpuReader, uuid: str, process: Process, tally: GpuTally) -> int | None:
    seen = tally.own.get(process) or tally.others.get(process)
    if seen is not None and seen.account_start_us is not None:
        return seen.account_start_us
    try:
        account = reader.account(uuid, process.pid)
    except NvmlProblem:  # accounting is off, or not to be had
        return None
    return account.start_us if account else None


def run(
    sampler: Sampler,
    interval_s: float,
    *,
    wait: Callable[[float], bool],
    wanted: Callable[[], bool],
    flush: Callable[[], object],
    clock: Callable[[], float],
) -> None:
    """Samples until `wait` says that it was told to stop, or nobody wants the samples any more."""
    flushed_at = clock()
    while wanted():
        sampler.step()
        if clock() - flushed_at >= FLUSH_INTERVAL_S:
            flush()
            flushed_at = clock()
        if wait(interval_s):
            break
    if wanted():
        sampler.finish()


def command(job: Path, interval_s: float, spool_dir: Path, fallback_dir: Path) -> list[str]:
    """How the prolog starts a sampler."""
    arguments = [str(job), str(interval_s), str(spool_dir), str(fallback_dir)]
    return [sys.executable, "-m", "prolog.sampler", *arguments]


def main(arguments: list[str]) -> None:
    """Samples until the end of the job."""
    path, interval_s, *folders = arguments
    stop = {signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # taken between two samples only, by sigtimedwait
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    job = JobDir(Path(path).parent, int(Path(path).name))
    marker, record = job.marker(), job.record()
    if marker is None or record is None:
        return
    run(
        _sampler(job, record, wanted=lambda: job.marker() == marker),
        float(interval_s),
        wait=lambda seconds: signal.sigtimedwait(stop, seconds) is not None,
        wanted=lambda: job.marker() == marker,
        flush=lambda: flush_apart([Path(folder) for folder in folders]),
        clock=time.monotonic,
    )


def _sampler(job: JobDir, record: JobRecord, wanted: Callable[[], bool]) -> Sampler:
    def save(tally: Tally) -> None:
        if wanted():
            job.write_tally(tally)

    processes = JobProcesses(record.job_id, record.user_id)
    return Sampler(record.names, NvmlReader, processes.look_up, save, time.monotonic)


def flush_apart(folders: Sequence[Path]) -> int | None:
    """Starts `gpumem-epilog --flush` if measurements wait in `folders`; returns its PID.

    It is a process of its own since it may hang, and since it needs more memory than a sampler shall have.
    """
    if not any(waiting(folder) for folder in folders):
        return None
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "prolog.epilog", "--flush"],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)],
        setsid=True,
        setsigmask=(),
        setsigdef=(signal.SIGCHLD,),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
