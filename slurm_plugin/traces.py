"""Traced runs of job scripts: a queue of them, and one run as the submitting user."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from slurm_plugin.wire import Estimated, Failure, Input, Submission

log = logging.getLogger("gpumemd")

_GRACE_S = 20.0
"""`gpumem estimate` ends itself; after its own limit and so much more it is killed."""

_ASKED_S = 1.0
_MAX_OUTPUT = 8 * 1024**2
_MAX_ERRORS = 64 * 1024
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_NOT_FOR_US = re.compile(r"LD_PRELOAD|LD_AUDIT|GPUMEM_\w*")
"""Would change `gpumem estimate` itself instead of the script."""

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,99}")


class TraceError(Exception):
    """There is no estimate; the text says why, `inputs` are the files that this depends on."""

    def __init__(self, reason: str, inputs: Sequence[Input] = ()) -> None:
        super().__init__(reason)
        self.inputs = tuple(inputs)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A job that waits for the trace of its script."""

    decision_id: str
    fingerprint: str
    submission: Submission
    gpu: str


@dataclass(frozen=True)
class Traced:
    """A result of a trace: all that was printed, and the part that decisions need."""

    estimate: Estimated
    detail: dict[str, Any]


Result = Traced | TraceError


class TraceQueue:
    """Runs traces in a few threads, first come first served; equal scripts share one run.

    Args:
        trace: runs one task to its result, or raises TraceError.
        workers: traces at the same time.
        started: told of every task whose trace begins, and before its result; returns at once.
        finished: told of a result and of all tasks that it is for, in a worker's thread.
    """

    def __init__(
        self,
        trace: Callable[[Task], Traced],
        workers: int,
        started: Callable[[Task], None],
        finished: Callable[[list[Task], Result], None],
    ) -> None:
        self._trace = trace
        self._started = started
        self._finished = finished
        self._waiting: OrderedDict[str, list[Task]] = OrderedDict()
        self._running: dict[str, list[Task]] = {}
        self._changed = threading.Condition()
        self._stopping = False
        self._typical_s = 10.0
        self._threads = [
            threading.Thread(target=self._work, name=f"tracer-{number}", daemon=True)
            for number in range(workers)
        ]

    def start(self) -> None:
        """Starts the worker threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """No further task is begun, and nobody is told of results any more."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def add(self, task: Task) -> None:
        """Queues a task behind the others, or joins it to the same script's."""
        with self._changed:
            if (running := self._running.get(task.fingerprint)) is not None:
                self._guarded(self._started, task)  # the run cannot end before we let go of the lock
                running.append(task)
            else:
                self._waiting.setdefault(task.fingerprint, []).append(task)
                self._changed.notify()

    def expected_wait_s(self) -> float:
        """How long a task added now would wait for its run to begin, going by the runs so far."""
        return self._typical_s * self.waiting() / max(1, len(self._threads))

    def waiting(self) -> int:
        """How many scripts wait or are being traced."""
        return len(self._waiting) + len(self._running)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if self._stopping:
                    return
                fingerprint, tasks = self._waiting.popitem(last=False)
                self._running[fingerprint] = tasks
                first = list(tasks)
            for task in first:
                self._guarded(self._started, task)
            began = time.monotonic()
            result = self._result(first[0])
            with self._changed:
                done = self._running.pop(fingerprint)
                self._typical_s += 0.2 * (time.monotonic() - began - self._typical_s)
                if self._stopping:
                    return
            self._guarded(self._finished, done, result)

    def _result(self, task: Task) -> Result:
        try:
            return self._trace(task)
        except TraceError as error:
            return error
        except Exception as error:
            log.exception("decision=%s", task.decision_id)
            return TraceError(f"gpumemd failed: {error!r}")

    def _guarded(self, whom: Callable[..., None], *what: Any) -> None:
        try:
            whom(*what)
        except Exception:  # one job's trouble must not end the worker
            log.exception("a result was not dealt with")


class UserRun:
    """Runs `gpumem estimate` as the user who submitted the job, in that job's environment and not in ours.

    Args:
        command: how `gpumem estimate` is called, up to its options.
        state_dir: job scripts lie below it while they are traced.
        timeout_s: the limit that `gpumem estimate` is given for its run.
        config: the configuration file it is told to use; None: its default.
    """

    def __init__(
        self, command: Sequence[str], state_dir: Path, timeout_s: float, config: Path | None = None
    ) -> None:
        self._command = tuple(command)
        self._directory = state_dir / "traces"
        self._timeout_s = timeout_s
        self._config = config
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopping = False

    def prepare(self) -> None:
        """Makes the folder of job scripts, and empties it of what an earlier run left behind."""
        self._directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._directory.chmod(0o711)
        for left in self._directory.iterdir():
            shutil.rmtree(left, ignore_errors=True)

    def stop(self) -> None:
        """Kills the runs in progress."""
        self._stopping = True
        for process in list(self._running):
            _kill(process)

    def __call__(self, task: Task) -> Traced:
        """Traces a job's script.

        Raises:
            TraceError: there is no estimate.
        """
        submission = task.submission
        try:
            user = pwd.getpwuid(submission.uid)
        except KeyError:
            raise TraceError(f"the controller does not know user id {submission.uid}") from None
        directory = self._directory / task.decision_id
        try:
            directory.mkdir(mode=0o700)
            script = directory / _file_name(submission)
            script.write_bytes((submission.script or "").encode())
            script.chmod(0o700)
            os.chown(script, user.pw_uid, user.pw_gid)
            os.chown(directory, user.pw_uid, user.pw_gid)
            return self._run(task, script, user)
        except OSError as error:
            raise TraceError(f"the trace cannot be started: {error}") from None
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def _run(self, task: Task, script: Path, user: pwd.struct_passwd) -> Traced:
        work_dir = task.submission.work_dir or "/"
        options = ["--json", "--gpu", task.gpu, "--timeout", f"{self._timeout_s:g}", "--chdir", work_dir]
        if array := task.submission.array_inx:
            options += ["--array", array]
        if asked := _asked(task.submission):
            options += ["--sbatch", shlex.join(asked)]
        if task.submission.argv:
            options += [f"--submitted-as={task.submission.argv[0]}"]
        if self._config is not None:
            options += ["--config", str(self._config)]
        process = subprocess.Popen(
            [*_LIMITS, *self._command, *options, str(script), "--", *task.submission.argv[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd="/",  # the user changes into the job's folder: it need not be open to root (NFS)
            env=_environment(task.submission, user),
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=os.getgrouplist(user.pw_name, user.pw_gid),
            umask=0o022,
            start_new_session=True,
        )
        self._running.add(process)
        if self._stopping:
            _kill(process)
        assert process.stdout is not None and process.stderr is not None  # noqa: S101 - for the type checker
        output, errors = _Capture(process.stdout, _MAX_OUTPUT), _Capture(process.stderr, _MAX_ERRORS)
        try:
            process.wait(self._timeout_s + _GRACE_S)
        except subprocess.TimeoutExpired:
            raise TraceError(f"the trace did not end within {self._timeout_s:g} s") from None
        finally:
            _kill(process)
            self._running.discard(process)
            output.close()
            errors.close()
        return read_result(output.data, errors.data, process.returncode)


def estimate_command() -> list[str]:
    """`gpumem estimate` of this installation; -I keeps the user's PYTHON* variables away from it."""
    return [sys.executable, "-I", "-m", "estimator", "estimate"]


def read_result(output: bytes | bytearray, errors: bytes | bytearray, exit_code: int) -> Traced:
    """What `gpumem estimate --json` printed.

    Raises:
        TraceError: it has no estimate, or printed something else.
    """
    try:
        detail = json.loads(output)
        if isinstance(detail, dict) and detail.get("status") == "failed":
            failure = Failure.model_validate(detail)
            raise TraceError(failure.reason[:1000], failure.inputs)
        return Traced(Estimated.model_validate(detail), detail)
    except (ValueError, ValidationError, RecursionError):
        lines = errors.decode(errors="replace").strip().splitlines()
        last = lines[-1][:300] if lines else "nothing was printed"
        raise TraceError(f"gpumem estimate ended with exit code {exit_code}: {last}") from None


# Lower priority than everything that answers users, and no run outlives the service.
_LIMITS = [
    word
    for program, words in (
        ("nice", ["nice", "-n", "20"]),
        ("setpriv", ["setpriv", "--pdeathsig", "KILL", "--"]),
    )
    if shutil.which(program)
    for word in words
]


class _Capture(threading.Thread):
    """Reads a pipe to its end and keeps the first `limit` bytes."""

    def __init__(self, pipe: IO[bytes], limit: int) -> None:
        super().__init__(daemon=True)
        self._pipe = pipe
        self._limit = limit
        self.data = bytearray()
        self.start()

    def run(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while chunk := self._pipe.read1(65536):  # type: ignore[attr-defined]
                self.data += chunk[: self._limit - len(self.data)]

    def close(self) -> None:
        """Waits for the end of the output; a process that keeps the pipe open is not waited for."""
        self.join(1.0)
        if not self.is_alive():
            self._pipe.close()


def _asked(submission: Submission) -> list[str]:
    """Options that the job's own variables tell of, and that may not stand in the script."""
    asked = {
        "job-name": submission.name,
        "account": submission.account,
        "partition": submission.partition,
        "qos": submission.qos,
    }
    return [f"--{option}={value}" for option, value in asked.items() if value]


def _file_name(submission: Submission) -> str:
    name = Path(submission.argv[0]).name if submission.argv else ""
    return name if _FILE_NAME.fullmatch(name) else "job.sh"


def _environment(submission: Submission, user: pwd.struct_passwd) -> dict[str, str]:
    sent = {
        name: value
        for name, value in submission.environment.items()
        if name.isidentifier() and name.isascii() and "\0" not in value and not _NOT_FOR_US.fullmatch(name)
    }
    login = {
        "PATH": _DEFAULT_PATH,
        "HOME": user.pw_dir,
        "SHELL": user.pw_shell or "/bin/sh",
        "LANG": "C.UTF-8",
    }
    return {**login, **sent, "USER": user.pw_name, "LOGNAME": user.pw_name}


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the session of the run; what left the session is in the run's sandbox and dies with it.

    `gpumem estimate` is asked first, so that it takes its temporary folder away.
    """
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_ASKED_S)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
