"""A command, and what it took of the machine."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Used:
    """Seconds on the clock and of the processor, and the largest resident set (bytes) of one process.

    Processes that the command started and waited for are counted with it.
    """

    wall_s: float
    cpu_s: float
    resident_bytes: int
    output: str


def run(
    command: Sequence[str | Path],
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> Used:
    """Runs a command to its end.

    Raises:
        subprocess.CalledProcessError: it failed; with what it wrote to its standard error.
        subprocess.TimeoutExpired: it took longer than `timeout_s`, and was killed.
    """
    words = [str(word) for word in command]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        begin = time.perf_counter()
        process = subprocess.Popen(words, stdout=output, stderr=errors, cwd=cwd, env=environment)
        timed_out = False
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG if timeout_s else 0)
            if pid:
                break
            if timeout_s and time.perf_counter() - begin > timeout_s and not timed_out:
                timed_out = True
                process.kill()
            time.sleep(0.01)
        wall_s = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if timed_out and timeout_s:
            raise subprocess.TimeoutExpired(words, timeout_s)
        if process.returncode != 0:
            raise subprocess.CalledProcessError(
                process.returncode, words, stderr=errors.read(), output=output.read()
            )
        return Used(wall_s, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, output.read())
